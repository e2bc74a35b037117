"""A server of pictures, for prompts whose items stand at an address."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from threading import Thread


class Pictures:
    """Answers each request with the next of some files, the last one followed by the first."""

    def __init__(self, address: str, fetched: list[bytes]) -> None:
        self.address = address
        self.fetched = fetched  # what has been sent so far


@contextmanager
def serve(files: Sequence[bytes]) -> Iterator[Pictures]:
    """Serve the files on a loopback port."""
    following, fetched = cycle(files), list[bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            file = next(following)
            fetched.append(file)
            self.send_response(200)
            self.send_header("Content-Type", "image/png")
            self.send_header("Content-Length", str(len(file)))
            self.end_headers()
            self.wfile.write(file)

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Pictures(f"http://127.0.0.1:{server.server_port}/picture.png", fetched)
        finally:
            server.shutdown()
            thread.join()
