"""Baton beside the alternatives in one session: `python -m benchmarks.bench`."""
