"""A node without an engine: cheap, strict, with faults on demand. Start with `engine.py`."""
