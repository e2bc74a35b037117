"""Which node gets a request. Start with `policies.py`; `prefix_index.py` and `prefixes.py` are for the one that follows prefixes."""
