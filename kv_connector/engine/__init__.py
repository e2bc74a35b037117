"""Carrying out byte copies between nodes: what an engine must do (`base`), and Mooncake."""
