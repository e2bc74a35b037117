"""Which node gets a request. Start with `policies.py`; `index.py` and `prefixes.py` are for the one that follows prefixes."""
