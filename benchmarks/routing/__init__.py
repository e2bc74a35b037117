"""The proxy's routing in simulated time: its own policies, routers and nodes, on simulated prefill servers."""
