"""A compose file's services as processes of this machine, each in a network and mount namespace of its own; no engine."""
