"""What the connector does inside vLLM's workers: it moves bytes and reports; the scheduler decides."""
