"""HTTP/1.1 to the nodes, on asyncio and httptools: what a byte on its way through the proxy costs is decided here."""
