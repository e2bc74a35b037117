"""What nodes and proxies of one protocol version send each other, as bytes that stay.

    python -m tests.support.golden_wire

writes the file of the present version; one that is there is left alone. A change to a message so that the file does not
fit any more must raise `PROTOCOL_VERSION`, or peers of another release would misunderstand each other.
"""
