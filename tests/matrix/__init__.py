"""Prefill and decode nodes of every shape, in pairs, each compared with one plain server (`make test-matrix`)."""
