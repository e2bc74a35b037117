"""What operators see of requests: metrics, access log, vLLM's series of the nodes. Nothing here decides anything."""
