"""The whole real stack: vLLM, Mooncake, HTTP, processes and signals. Nothing here is faked."""
