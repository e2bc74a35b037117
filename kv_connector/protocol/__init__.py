"""Messages of the control channel, and their verification. No I/O."""
