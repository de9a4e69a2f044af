"""A training run: build it from a recipe, loop, checkpoints, logging, evaluation."""
