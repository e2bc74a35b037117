"""The decode node: a vLLM server that receives a prompt's KV and generates. What it shares is in `node`."""
