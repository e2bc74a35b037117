"""Helpers of the tests that watch processes, and of those that ask a server."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_naming(word: str) -> list[int]:
    """Return the pids of all processes whose command line or environment holds `word`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in text and alive(int(folder.name)):
            found.append(int(folder.name))
    return found


@contextmanager
def answering(handler: type[BaseHTTPRequestHandler], certificate: tuple[Path, Path] | None = None) -> Iterator[int]:
    """Serve in a thread, over TLS where there is a certificate; yield the port."""
    silent = type("Silent", (handler,), {"log_message": lambda *_: None})  # pytest's output stays readable
    with ThreadingHTTPServer(("127.0.0.1", 0), silent) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
