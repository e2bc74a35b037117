"""Memory that stands for a KV cache: real pages, none of them shared."""

import ctypes
import mmap
import os


class HostMemory:
    """So many bytes, at an address."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size)
        self._memory[:] = os.urandom(1 << 16) * (size >> 16)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.size = size
