"""Answers 200 on every path of `--port`; further flags make it misbehave. Run as a program, or `main` in a fork."""

import http.server
import os
import signal
import sys
import threading
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM.

    Flags: `--port N`; `--status N` and `--body TEXT` to answer with; `--die-after-s X`; `--ignore-term 1`; `--drain-s X`:
    SIGTERM ends it so much later, with a word in its log.
    """
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    if "--ignore-term" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--drain-s" in options:
        signal.signal(signal.SIGTERM, lambda *_: threading.Timer(float(options["--drain-s"]), _end_drained).start())
    print("fake server starting", flush=True)
    _Answer.status = int(options.get("--status", "200"))
    _Answer.body = options.get("--body", "").encode()
    with http.server.ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), _Answer) as server:
        if "--die-after-s" in options:
            threading.Timer(float(options["--die-after-s"]), _die).start()
        server.serve_forever()
    return 0


def _end_drained() -> None:
    print("drained", flush=True)
    os._exit(0)


def _die() -> None:
    print("RuntimeError: out of luck", flush=True)
    os._exit(7)


class _Answer(http.server.BaseHTTPRequestHandler):
    status = 200
    body = b""

    def do_GET(self) -> None:  # the name that http.server calls
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
