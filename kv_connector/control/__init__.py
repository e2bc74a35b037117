"""The control channel between prefill and decode ranks, and the sockets between a connector and its node."""
