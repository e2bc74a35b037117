"""What stands above the rooms: the `baton` command, the one-machine launcher, the embedded model."""
