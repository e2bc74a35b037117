"""A proxy in front of fake nodes, all on real sockets."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from baton.contracts.configuration.schema import BatonConfig, ProxyConfig, TransferConfig
from baton.proxy.admin.token import AdminToken
from baton.proxy.app import create_app
from baton.proxy.http_server.client_protocol import protocol
from tests.support.fake_answers import MODEL
from tests.support.fake_fabric import Fabric
from tests.support.fake_vllm import SECRET, FakeVllm
from tests.support.serve import serve

T = TypeVar("T")
CLIENT_S = 60  # more than the proxy gives a request: its answer counts
ADMIN_TOKEN = "an admin token for tests"
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 3}
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


@dataclass(frozen=True, slots=True)
class Cluster:
    url: str
    prefill: list[FakeVllm]
    decode: list[FakeVllm]
    http: httpx.AsyncClient
    fabric: Fabric

    async def admin(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Ask the admin API, with its token."""
        return await self.http.request(method, path, headers={"authorization": f"Bearer {ADMIN_TOKEN}"}, **more)

    async def complete(self, **changes: Any) -> httpx.Response:
        """Ask for a completion, read whole."""
        return await self.http.post("/v1/completions", json={**COMPLETION, **changes})

    async def chat(self, **changes: Any) -> httpx.Response:
        """Ask for a chat completion, read whole."""
        return await self.http.post("/v1/chat/completions", json={**CHAT, **changes})

    async def nodes(self) -> list[dict[str, Any]]:
        """What the proxy says of each member."""
        nodes: list[dict[str, Any]] = (await self.http.get("/ready")).json()["nodes"]
        return nodes

    async def state_of(self, node: FakeVllm) -> dict[str, Any]:
        return next(each for each in await self.nodes() if each["url"] == node.url)

    async def metric(self, name: str) -> float:
        """Read one sample of the proxy's metrics; 0 if it is not there."""
        text = (await self.http.get("/metrics")).text
        found = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + " ")]
        return float(found[0]) if found else 0.0

    def hold(self) -> None:
        """Let no decode node answer, until `release`."""
        for node in self.decode:
            node.may_answer.clear()

    def release(self) -> None:
        for node in self.decode:
            node.may_answer.set()

    async def until_ready(self) -> None:
        """Wait until every node is in use."""
        await until(self.nodes, lambda nodes: all(node["state"] == "ready" for node in nodes))

    async def until_state(self, node: FakeVllm, state: str) -> dict[str, Any]:
        """Wait until the proxy says this of a node."""
        return await until(lambda: self.state_of(node), lambda seen: seen["state"] == state)

    async def until_metric(self, name: str, value: float) -> None:
        await until(lambda: self.metric(name), lambda found: found == value)

    async def until_nothing_in_flight(self) -> None:
        """Wait until the proxy counts no request: a node hears of an end before that."""
        await self.until_metric("baton_requests_in_flight", 0)


async def until(ask: Callable[[], Awaitable[T]], holds: Callable[[T], object], *, timeout_s: float = 20.0) -> T:
    """Ask again and again until the answer is as it shall be; return that."""
    deadline_s = time.monotonic() + timeout_s
    while not holds(found := await ask()):
        assert time.monotonic() < deadline_s, f"the condition did not come true in time; last was {found}"
        await asyncio.sleep(0.01)
    return found


async def until_true(condition: Callable[[], Any], *, timeout_s: float = 20.0) -> None:
    """Poll until a condition (or coroutine function) holds."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert time.monotonic() < deadline_s, "the condition did not come true in time"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def cluster(
    *,
    prefill: int = 1,
    decode: int = 1,
    ready: bool = True,
    transfer_timeout_s: float = 30.0,
    described: dict[str, Any] | None = None,
    admin_token: str | None = ADMIN_TOKEN,
    fabric: Fabric | None = None,
    also: dict[str, tuple[str, ...]] | None = None,
    first_tokens: str = "",
    both_ways: bool = False,
    **settings: Any,
) -> AsyncIterator[Cluster]:
    """Run fake nodes and a proxy.

    `settings` are fields of `ProxyConfig` (all that can be is handed over, if they do not say otherwise), `described` of each P's `NodeInfo`; `also` are further members by role; `first_tokens` is that
    of every node's `NodeInfo`; `both_ways`: the D send KV too.
    """
    fabric = fabric or Fabric()
    makers = [FakeVllm("prefill", fabric) for _ in range(prefill)]
    takers = [FakeVllm("decode", fabric) for _ in range(decode)]
    for maker in makers:
        maker.change(**{"first_tokens": first_tokens, **(described or {})})
    for node in takers:
        node.change(first_tokens=first_tokens, both_ways=both_ways)
        node.change(control_addresses=["tcp://127.0.0.1:9200"] if both_ways else [])
    for node in (*makers, *takers):
        await node.start()
    urls = {"prefill": tuple(node.url for node in makers), "decode": tuple(node.url for node in takers)}
    urls = {role: (*own, *(also or {}).get(role, ())) for role, own in urls.items()}
    defaults = {
        "probe_interval_s": 0.05,
        "probe_timeout_s": 20.0,
        "connect_timeout_s": 20.0,
        "placement": "pairs",
        "request_timeout_s": 20.0,
        **urls,
    }
    config = BatonConfig(
        proxy=ProxyConfig(**{**defaults, **settings}), transfer=TransferConfig(transfer_timeout_s=transfer_timeout_s)
    )
    try:
        async with (
            serve(
                create_app(config, SECRET, AdminToken(admin_token) if admin_token else None),
                http=protocol(config.proxy),
            ) as url,
            httpx.AsyncClient(base_url=url, timeout=CLIENT_S) as http,
        ):
            running = Cluster(url, makers, takers, http, fabric)
            if ready:
                await running.until_ready()
            yield running
    finally:
        await asyncio.gather(*(node.stop() for node in (*makers, *takers)))
