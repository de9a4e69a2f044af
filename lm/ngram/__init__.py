"""KenLM n-gram models: build, adapt, query."""
