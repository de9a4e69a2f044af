"""KenLM n-gram models: build from text, adapt, read, query."""
