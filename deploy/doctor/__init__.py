"""`baton doctor`: what is wrong with a machine or a deployment, before traffic finds it.

`catalogue` has every finding with its meaning and its fix. `fit` finds problems, purely; `local` and `deployment`
look, with what the nodes themselves use; `report` tells. Main path: `command.main`.
"""
