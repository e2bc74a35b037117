"""How sampled tokens come to the host without stalling a stream: read `transfer` first; docs/decisions/0027."""
