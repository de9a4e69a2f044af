"""Batching and workers: the planner, the engine, the decode workers, the measured capacity."""
