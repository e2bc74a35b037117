"""Is the planner right? Nodes in CPU quotas, calibrated as a pair, then loaded in several shapes, beside the simulation.

`rig` starts the nodes, `figures` compares (pure), `report` shows it, `__main__` is the command: `python -m benchmarks.plan_check`.
"""
