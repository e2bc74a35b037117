"""What both kinds of node share outside vLLM's worker: start-up checks, vLLM's arguments, the node API."""
