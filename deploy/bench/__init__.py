"""`make bench`: Baton beside two plain servers and vLLM's own connectors, on throttled links, in one session."""
