"""Records of requests → figures. Nothing here knows a socket or a clock."""
