"""A node's own HTTP routes, and what guards and accompanies vLLM's: bearer tokens, bounds of connections, `kv_transfer_params`."""
