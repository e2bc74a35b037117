"""Connections of clients: accepting, time-outs of idle, half-sent and unread ones, limits of descriptors and connections, TLS."""
