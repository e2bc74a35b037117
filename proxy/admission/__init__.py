"""Who may begin, and who waits, when there are more requests than the nodes can take. Start with `concurrency_limiter.py`."""
