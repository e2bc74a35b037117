"""Stands in for a node or the proxy in the launcher's tests."""
