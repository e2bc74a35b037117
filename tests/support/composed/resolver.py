"""The name server that each container of a composition has at 127.0.0.11: service → the addresses of its containers.

Like the engine's own: every address of a name at once, in turning order; a name is there while one of its containers is. It
knows A records, and says of all else that there is none.
"""

import ctypes
import os
import random
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

ADDRESS: Final = ("127.0.0.11", 53)
RESOLV_CONF: Final = "nameserver 127.0.0.11\noptions ndots:0 timeout:1 attempts:3\n"
_HEADER: Final = struct.Struct("!6H")
_A, _IN = 1, 1
_REPLY: Final = 0x8180  # a reply, recursion wanted and to be had
_NO_SUCH_NAME: Final = 3
_POINTER: Final = 0xC00C  # to the question's name
_TTL_S: Final = 0
LOOK_S: Final = 0.2  # whether it is to end
_CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


def answer(query: bytes, names: Mapping[str, Sequence[str]]) -> bytes:
    """Return the reply to a query of one question."""
    number, _, questions, *_ = _HEADER.unpack_from(query)
    name, end = _name(query, _HEADER.size)
    kind, _ = struct.unpack_from("!2H", query, end)
    question = query[_HEADER.size : end + 4]
    known = list(names.get(name, ()))
    addresses = known if kind == _A else []
    random.shuffle(addresses)
    records = b"".join(
        struct.pack("!3HIH", _POINTER, _A, _IN, _TTL_S, 4) + socket.inet_aton(address) for address in addresses
    )
    flags = _REPLY if known else _REPLY | _NO_SUCH_NAME
    return _HEADER.pack(number, flags, questions, len(addresses), 0, 0) + question + records


class Resolver:
    """Answers in one namespace, for one container; `names` is looked at anew for each question."""

    def __init__(self, space: str, names: Mapping[str, Sequence[str]]) -> None:
        self._space = space
        self._names = names
        self._bound = threading.Event()
        self._problem: OSError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"names of {space}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._bound.wait()
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        """In a thread, since a thread can be in a network of its own."""
        try:
            _enter(self._space)
            served = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            served.bind(ADDRESS)
        except OSError as exc:
            self._problem = exc
            return
        finally:
            self._bound.set()
        served.settimeout(LOOK_S)
        with served:
            while not self._stop.is_set():
                with suppress(
                    TimeoutError, struct.error, UnicodeDecodeError, IndexError
                ):  # no question, or none that is one
                    query, asker = served.recvfrom(512)
                    served.sendto(answer(query, self._names), asker)


def _enter(space: str) -> None:
    descriptor = os.open(Path("/run/netns") / space, os.O_RDONLY)
    try:
        if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    finally:
        os.close(descriptor)


def _name(query: bytes, at: int) -> tuple[str, int]:
    labels = []
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels).lower(), at + 1
