"""Members by DNS name: `dns://prefill:8100` stands for every address that the name has, asked again all the time.

That is how docker-compose (`--scale`) and Kubernetes (a headless Service) say which replicas there are. A failed lookup
keeps the last answer: DNS being down is no reason to drop nodes that work. Addresses that go while others come stay
until the next answer: a rolled StatefulSet swaps them in one, and those that come are not known to be ready yet.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from yarl import URL

from baton.proxy.http.address import is_base_url
from baton.proxy.nodes.discovery import Publish, SourceError

logger = logging.getLogger(__name__)

SCHEME: Final = "dns"
Lookup = Callable[[str, int], list[str]]  # host, port → addresses; blocks


def look_up(host: str, port: int) -> list[str]:
    """Return a name's IPv4 addresses, else its IPv6 ones: a replica with both is one member. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families = {family for family, *_ in found}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return [str(address[0]) for kind, _, _, _, address in found if kind == family]


class DnsSource:
    """Asks for one name, in a thread, at intervals; never twice at the same time."""

    def __init__(self, url: str, *, interval_s: float, lookup: Lookup | None = None) -> None:
        """Take a name and port. Raises `SourceError`: that is not of the form `dns://name:port`."""
        self.name = url
        self._host, self._port = _parse(url)
        self._interval_s = interval_s
        self._lookup = lookup or look_up
        self._asked: asyncio.Future[list[str] | OSError] | None = None
        self._answered: tuple[str, ...] = ()  # the last answer
        self._urls: tuple[str, ...] | None = None  # what is published; None: never answered
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self, publish: Publish) -> None:
        """Ask now and then; publishes nothing before the first answer."""
        self._task = asyncio.create_task(self._run(publish))

    async def stop(self) -> None:
        """Ask no more; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "urls": list(self._urls or ()), "problem": self._problem}

    async def _run(self, publish: Publish) -> None:
        while True:
            future = self._asked = self._asked or self._ask()
            await asyncio.wait((future,), timeout=self._interval_s)
            if not future.done():
                self._note(f"no answer within {self._interval_s:g} s")
                continue  # to wait on for the same answer
            self._asked = None
            self._take(future.result(), publish)
            await asyncio.sleep(self._interval_s)

    def _take(self, answer: list[str] | OSError, publish: Publish) -> None:
        if isinstance(answer, OSError) or not answer:
            self._note(str(answer) if answer else "it has no address")
            return
        self._note("")
        urls = tuple(str(URL.build(scheme="http", host=host, port=self._port)) for host in sorted(set(answer)))
        before, self._answered = self._answered, urls
        if not set(urls) <= set(before):
            urls = tuple(sorted({*before, *urls}))
        if urls != self._urls:
            logger.info("name resolves to other addresses", extra={"name_asked": self.name, "addresses": len(urls)})
            self._urls = urls
            publish(urls)

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            fields = {"name_asked": self.name, "reason": problem}
            logger.warning("name cannot be resolved, its last addresses stay", extra=fields)
        self._problem = problem

    def _ask(self) -> "asyncio.Future[list[str] | OSError]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[str] | OSError] = loop.create_future()

        def deliver(answer: list[str] | OSError) -> None:
            if not future.done():
                future.set_result(answer)

        def work() -> None:
            answer: list[str] | OSError
            try:
                answer = self._lookup(self._host, self._port)
            except OSError as exc:
                answer = exc
            except UnicodeError as exc:  # no name at all
                answer = OSError(str(exc))
            with suppress(RuntimeError):  # the loop is closed: no task waits any more
                loop.call_soon_threadsafe(deliver, answer)

        # A thread of our own and a daemon, since a resolver may hang for long and must not keep the process from
        # ending.
        try:
            threading.Thread(target=work, name=f"lookup {self._host}", daemon=True).start()
        except RuntimeError as exc:  # the system has no more threads, for now
            deliver(OSError(str(exc)))
        return future


def _parse(url: str) -> tuple[str, int]:
    try:
        parsed = URL(url)
        host, port = parsed.host, parsed.explicit_port
    except ValueError:
        host, port = None, None
    named = f"{host}:{port}"
    if not host or not port or not is_base_url(f"http://{named}") or url.rstrip("/") != f"{SCHEME}://{named}":
        raise SourceError(f"{url!r} is not of the form {SCHEME}://name:port")
    return host, port
