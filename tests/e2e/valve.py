"""A forwarder in front of a node that can be shut (it then swallows the legs of requests, and lets probes through), or cut like a cable."""

import socket
import threading
from contextlib import suppress
from typing import Self

CHUNK_BYTES = 65_536


class Valve:
    """Looks like the node behind it. A connection whose POST was swallowed stays open and silent, as a stuck node's."""

    def __init__(self, target_url: str) -> None:
        host, _, port = target_url.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.shut = False
        self.swallowed = 0
        self.whole = threading.Event()  # cleared: nothing passes, and no connection ends
        self.whole.set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Pass on what comes from the proxy."""
        with suppress(OSError), near, socket.create_connection(self._target) as far:
            swallowed = threading.Event()
            threading.Thread(target=self._pump, args=(far, near, swallowed), daemon=True).start()
            while data := near.recv(CHUNK_BYTES):
                self.whole.wait()
                if self.shut and data.startswith(b"POST"):
                    swallowed.set()
                    self.swallowed += 1
                    while near.recv(CHUNK_BYTES):
                        pass
                    break
                far.sendall(data)
            far.shutdown(socket.SHUT_RDWR)

    def _pump(self, far: socket.socket, near: socket.socket, swallowed: threading.Event) -> None:
        """Pass on what comes from the node, until either end closes."""
        with suppress(OSError):
            try:
                while data := far.recv(CHUNK_BYTES):
                    self.whole.wait()
                    near.sendall(data)
            finally:  # also where a node that was killed has reset the connection
                if not swallowed.is_set():  # the node sees an idle connection, and closes it after 5 s
                    near.shutdown(socket.SHUT_RDWR)
