"""Which connections are kept, and for how long, and what the end closes."""

import asyncio
import ssl
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from baton.proxy.http import pool
from baton.proxy.http.address import address_of
from baton.proxy.http.pool import KEEP_ALIVE_S, Pool
from baton.proxy.http.upstream import Upstream
from tests.support.cluster import until_true

HERE, THERE = address_of("http://a:1"), address_of("http://b:1")


class Idle:
    """As much of a connection as a pool uses."""

    def __init__(self) -> None:
        self.is_open = True
        self.idle_since_s = 0.0

    def abandon(self) -> None:
        self.is_open = False


def give(made: Pool, count: int = 1, **to: Any) -> list[Idle]:
    given = [Idle() for _ in range(count)]
    for each in given:
        made._give(to.get("address", HERE), cast("Any", each))
    return given


async def test_the_newest_that_is_open_is_taken() -> None:
    """By one request alone, and for its own node."""
    made = Pool()
    old, new, closed = give(made, 3)
    give(made, address=THERE)
    closed.abandon()

    assert [cast("Any", made.take(HERE)) for _ in range(3)] == [new, old, None]
    made.close()


async def test_an_end_closes_every_connection() -> None:
    """Also one that a request uses."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream(connect_timeout_s=10)
    connection = await upstream.connect(address_of("http://{}:{}".format(*server.sockets[0].getsockname())))
    await upstream.stop()
    is_open = connection.is_open
    connection.abandon()
    server.close()

    assert not is_open


@pytest.mark.parametrize(("url", "name"), [("https://a:1", "a"), ("http://a:1", None)])
async def test_a_node_that_has_tls_is_known_by_its_name(
    monkeypatch: pytest.MonkeyPatch, url: str, name: str | None
) -> None:
    made = AsyncMock(side_effect=OSError)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", made)
    with pytest.raises(OSError):  # noqa: PT011  # it has no message
        await Pool().connect(address_of(url))

    (_, *where), how = made.await_args_list[0]
    assert (where, how["server_hostname"]) == (["a", 1], name)
    assert (how["ssl"].verify_mode if name else how["ssl"]) == (ssl.CERT_REQUIRED if name else None)


async def test_what_idles_for_long_is_closed_and_the_others_are_kept() -> None:
    """Also those that were given back while others were used."""
    made = Pool()
    old, new = give(made, 2)
    (other,) = give(made, address=THERE)
    old.idle_since_s -= KEEP_ALIVE_S
    other.idle_since_s -= KEEP_ALIVE_S
    made._close_old()

    assert [each.is_open for each in (old, new, other)] == [False, True, False]
    assert made.take(HERE) is cast("Any", new)
    made.close()


async def test_idle_ones_are_looked_at_again_until_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "KEEP_ALIVE_S", 0.05)
    made = Pool()
    old, new = give(made, 2)
    new.idle_since_s += 0.05  # it was used when the first look comes

    await until_true(lambda: not new.is_open)
    assert [old.is_open, made._idle, made._sweep] == [False, {}, None]
