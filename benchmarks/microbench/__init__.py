"""What the connector itself costs: the planner, the hooks, the way of the bytes, the sender's CPU. No model is run.

Each part runs in a process of its own, forked from one that has imported what all need, and yields figures.
"""
