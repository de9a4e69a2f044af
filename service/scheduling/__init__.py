"""Who runs when and where: the planner (pure), the engine, the decode workers, the measured capacity."""
