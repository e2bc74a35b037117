"""Bytes that are hardly HTTP, thrown at a proxy in front of mock engines. `scripts` makes them, `run` throws and judges."""
