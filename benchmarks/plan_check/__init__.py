"""Is the planner right? Nodes in CPU quotas, calibrated as a pair, then loaded in several shapes, beside the simulation."""
