"""What is decided and refused before vLLM begins: its arguments and environment, addresses, hosts, memory, weights."""
