"""The prefill node: a vLLM server that computes prompts and pushes their KV. What it shares is in `node`."""
