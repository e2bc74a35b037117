import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from baton.proxy.nodes.discovery import SourceError
from baton.proxy.nodes.dns import DnsSource, look_up
from tests.support.cluster import until_true

INTERVAL_S = 0.02


class Resolver:
    def __init__(self, *addresses: str) -> None:
        self.addresses: list[str] = list(addresses)
        self.error: OSError | UnicodeError | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.asked = self.answered = 0

    def __call__(self, host: str, port: int) -> list[str]:
        assert (host, port) == ("prefill", 8100)
        self.asked += 1
        self.goes_on.wait(60)
        self.answered += 1
        if self.error is not None:
            raise self.error
        return list(self.addresses)


@asynccontextmanager
async def running(resolver: Resolver) -> AsyncIterator[tuple[DnsSource, list[tuple[str, ...]]]]:
    """A source that asks often, and what it has published."""
    published: list[tuple[str, ...]] = []
    source = DnsSource("dns://prefill:8100", interval_s=INTERVAL_S, lookup=resolver)
    await source.start(published.append)
    try:
        yield source, published
    finally:
        resolver.goes_on.set()
        await source.stop()


async def asked_again(resolver: Resolver) -> None:
    """Wait until two more lookups have begun, so that one has ended."""
    before = resolver.asked
    await until_true(lambda: resolver.asked >= before + 2)


async def test_changes_are_published_and_nothing_else() -> None:
    """Scaling up and down is followed; the same answer again is no news, in whatever order. IPv6 ones get brackets."""
    resolver = Resolver("10.0.0.1")
    async with running(resolver) as (_, published):
        await asked_again(resolver)
        resolver.addresses = ["fd00::1", "10.0.0.2", "10.0.0.1", "fd00::1"]
        await asked_again(resolver)
        resolver.addresses.reverse()
        await asked_again(resolver)
        resolver.addresses = ["10.0.0.2"]
        await asked_again(resolver)

    assert published == [
        ("http://10.0.0.1:8100",),
        ("http://10.0.0.1:8100", "http://10.0.0.2:8100", "http://[fd00::1]:8100"),
        ("http://10.0.0.2:8100",),
    ]


async def test_addresses_that_go_stay_until_those_that_come_have_been_asked() -> None:
    """A rolled StatefulSet swaps them in one answer: without the old one no node would be ready for as long as a probe takes."""
    resolver = Resolver("10.0.0.1", "10.0.0.2")
    async with running(resolver) as (_, published):
        await until_true(lambda: published)
        resolver.addresses = ["10.0.0.2", "10.0.0.3"]
        await until_true(lambda: len(published) == 3)
        resolver.addresses = ["10.0.0.4"]
        await until_true(lambda: len(published) == 5)

    one, two, three, four = (f"http://10.0.0.{number}:8100" for number in (1, 2, 3, 4))
    assert published == [(one, two), (one, two, three), (two, three), (two, three, four), (four,)]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (socket.gaierror(-3, "try again"), "[Errno -3] try again"),
        (UnicodeError("label too long"), "label too long"),
        (None, "it has no address"),
    ],
)
async def test_a_failed_lookup_keeps_the_last_answer(
    error: OSError | UnicodeError | None, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also an empty one; the problem is told until it is over, and logged once."""
    resolver = Resolver("10.0.0.1")
    async with running(resolver) as (source, published):
        await until_true(lambda: published)
        resolver.error, resolver.addresses = error, []
        await asked_again(resolver)
        await asked_again(resolver)
        described = source.describe()
        resolver.error, resolver.addresses = None, ["10.0.0.1"]
        await until_true(lambda: source.describe()["problem"] == "")

    assert published == [("http://10.0.0.1:8100",)]
    assert described == {"name": "dns://prefill:8100", "urls": ["http://10.0.0.1:8100"], "problem": problem}
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


async def test_a_lookup_for_which_there_is_no_thread_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's limit of threads, for instance."""
    resolver, failed = Resolver("10.0.0.1"), list[str]()
    start = threading.Thread.start

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "lookup prefill" and not failed:
            failed.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    async with running(resolver) as (_, published):
        await until_true(lambda: published)

    assert failed


async def test_a_lookup_that_hangs_is_waited_for_and_not_repeated() -> None:
    """Threads do not pile up, and its late answer counts."""
    resolver = Resolver("10.0.0.1")
    resolver.goes_on.clear()
    async with running(resolver) as (source, published):
        await until_true(lambda: source.describe()["problem"])
        await asyncio.sleep(5 * INTERVAL_S)
        asked = resolver.asked
        resolver.goes_on.set()
        await until_true(lambda: published)

    assert asked == 1


async def test_stopping_does_not_wait_for_a_lookup() -> None:
    """A resolver may hang for half a minute."""
    resolver = Resolver()
    resolver.goes_on.clear()
    source = DnsSource("dns://prefill:8100", interval_s=60.0, lookup=resolver)
    await source.start(lambda _: None)
    await until_true(lambda: resolver.asked)
    try:
        async with asyncio.timeout(20):
            await source.stop()
        assert resolver.answered == 0
        # Nor does the process.
        assert {thread.daemon for thread in threading.enumerate() if thread.name == "lookup prefill"} == {True}
    finally:
        resolver.goes_on.set()


@pytest.mark.parametrize("url", ["dns://prefill", "dns://:8100", "dns://p:8100/x", "dns:p:8100", "dns://p:99999"])
def test_a_name_needs_a_port_and_nothing_else(url: str) -> None:
    with pytest.raises(SourceError, match="dns://name:port"):
        DnsSource(url, interval_s=1.0)


def test_one_family_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica with an address of each family is one member, not two."""

    def found(*addresses: str) -> list[tuple[object, ...]]:
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [(family, 1, 6, "", (address, 8100)) for family, address in zip(families, addresses, strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found("fd00::1", "10.0.0.1", "10.0.0.2"))
    assert look_up("p", 8100) == ["10.0.0.1", "10.0.0.2"]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found("fd00::1", "fd00::2"))
    assert look_up("p", 8100) == ["fd00::1", "fd00::2"]


def test_the_real_resolver_knows_localhost() -> None:
    assert look_up("localhost", 8100) == ["127.0.0.1"]
