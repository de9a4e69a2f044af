"""Batching and workers: the planner (pure), the engine, the decode workers, the measured capacity."""
