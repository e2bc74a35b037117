"""What the connector does inside vLLM's scheduler: it decides, the workers act."""
