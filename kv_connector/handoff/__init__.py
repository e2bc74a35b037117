"""The protocol's state machines, without any I/O.

`Producer` lives in a prefill rank, `Consumer` in a decode rank. Both are plain objects: methods take events and the
current time, outputs are collected in lists that the caller drains. No thread, socket, clock or device is touched
here, which is why one test can drive the real machines through every interleaving of losses, crashes and late writes.
"""
