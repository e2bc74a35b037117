"""How much of the transfer the prefill hides, on a throttled link, beside vLLM's connectors."""
