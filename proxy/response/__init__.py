"""The response to one client, and the relay that writes a decode node's stream to it."""
