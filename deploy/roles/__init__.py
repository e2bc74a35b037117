"""`baton roles`: has nodes that send and receive change their roles by load."""
