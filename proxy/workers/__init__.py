"""Several processes that are one proxy: they share the port, what operators ordered, and what they show.

`supervisor.py` starts them; `admin/worker_group.py` is what one knows of the others. With one process none of it runs.
"""
