"""Carrying out byte copies between nodes: what an engine must do (`base`), Mooncake, and one in memory for tests."""
