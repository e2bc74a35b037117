"""The OpenAPI document: the proxy's own routes, and the engine's as a node describes them. Nothing here is on a request's way."""
