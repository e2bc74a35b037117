"""The nodes: registry, discovery, health probes, circuit breakers, administrators' overrides, load that other proxies put on them."""
