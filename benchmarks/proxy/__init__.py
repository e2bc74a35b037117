"""What a proxy costs, beside others in one session. Start with `session.py`."""
