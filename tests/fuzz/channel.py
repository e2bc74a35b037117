"""A listener that answers, a peer that asks it, and raw connections to its port.

`python -m tests.fuzz.channel` is a listener and nothing else until its input ends, for tests that need one in a process of
its own, and prints how many connections it refused.
"""

import argparse
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.control.loop import ControlLoop, PeerKey
from baton.kv_connector.control.monitor import HANDSHAKE_S

SECRET = ClusterSecret(b"a secret of the cluster")
PATIENCE_S = 30.0  # a deadline against hanging
TICK_S = 0.05


class Echo:
    """Answers every message with itself, or counts answers."""

    def __init__(self) -> None:
        self.listener: ControlLoop | None = None
        self.got = 0

    def on_payload(self, peer: PeerKey, payload: bytes) -> None:
        """Answer, if this is the listener's."""
        self.got += 1
        if self.listener:
            self.listener.send(peer, payload)

    def on_tick(self) -> None:
        pass

    def on_disconnect(self, peer: PeerKey) -> None:
        pass


def listen() -> tuple[ControlLoop, str]:
    """Make a listener that answers; returns it, not started, and its address."""
    handler = Echo()
    handler.listener = loop = ControlLoop(handler, TICK_S)
    return loop, loop.listen("127.0.0.1", 0, SECRET)


class Peer:
    """A peer of a listener, and the strangers that connect to its port."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._answers = Echo()
        self._loop = ControlLoop(self._answers, TICK_S, secret=SECRET)

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()

    def is_answered(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether a message gets there and back."""
        before = self._answers.got

        def answered() -> bool:
            self._loop.send(("dial", self.address), b"are you there?")
            return self._answers.got > before

        return comes_true(answered, timeout_s)

    def is_let_in(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether a new connection of ours is answered."""
        self._loop.forget(("dial", self.address))
        return self.is_answered(timeout_s)

    def dial(self, data: bytes = b"") -> socket.socket:
        """Open a raw connection and say something."""
        connection = socket.create_connection(("127.0.0.1", int(self.address.rpartition(":")[2])), timeout=5)
        with suppress(ConnectionError):  # it may hang up while we speak
            connection.sendall(data)
        return connection


def refused(listener: ControlLoop) -> int:
    """How many connections a listener counts as refused."""
    return listener._refusals.snapshot().get("handshake", 0)


def comes_true(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    """Poll until something holds."""
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if condition():
            return True
        time.sleep(0.02)
    return False


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--descriptors", type=int, help="how many descriptors this process may have")
    arguments = parser.parse_args()
    if arguments.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (arguments.descriptors, arguments.descriptors))
    loop, address = listen()
    loop.start()
    print(address, flush=True)
    sys.stdin.read()
    comes_true(lambda: refused(loop) > 0, 2 * HANDSHAKE_S)  # it may be told so late, and a tick after that
    print(refused(loop), flush=True)
    loop.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
