"""`proxy.workers`: several processes that are one proxy, whichever of them is asked and whichever of them dies.

Longer than other files: all tests share one proxy, and leave its nodes in use as they found them; the last one ends it.
"""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton.proxy.workers.listen import listen_on
from tests.support.cluster import ADMIN_TOKEN, COMPLETION, until, until_true
from tests.support.fake_answers import events
from tests.support.fake_vllm import FakeVllm
from tests.support.proxy_process import PATIENCE_S, ProxyProcess, proxy_process

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKERS = 3
NODES = "/admin/nodes"
FEED = "/dashboard/api/feed"
KEYS = {name: f"the-key-of-{name}-{'x' * 20}" for name in ("any", "few", "rare")}
LIMITS = {"any": {}, "few": {"requests_at_once": 4}, "rare": {"requests_per_minute": 1}}


class Proxy(ProxyProcess):
    """A proxy of several workers and the nodes behind it."""

    async def ask(self, method: str, path: str, key: str = ADMIN_TOKEN, **more: Any) -> httpx.Response:
        """Ask over a connection of its own: any worker may take it."""
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, headers=headers) as http:
            return await http.request(method, path, **more)

    async def complete(self, key: str = "any", **changes: Any) -> httpx.Response:
        """Ask for a completion."""
        return await self.ask("POST", "/v1/completions", KEYS[key], json={**COMPLETION, **changes})

    async def order(self, what: str, node: FakeVllm, **more: Any) -> None:
        """Do what operators do with a node: "" adds it."""
        got = await self.ask("POST", NODES + what, json={"url": node.url, **more})
        assert got.is_success, got.text

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ask("GET", "/admin/state")).json()
        return found

    async def pids(self) -> list[int]:
        """The workers that answer."""
        return [each["pid"] for each in (await self.state())["workers"] if each["pid"]]

    async def nodes(self) -> dict[str, dict[str, Any]]:
        """The members by URL."""
        return {node["url"]: node for node in (await self.state())["nodes"]}

    async def counted(self, name: str = "baton_requests_total") -> float:
        return total(name, (await self.ask("GET", "/metrics")).text)

    async def until_seen(self, requests: int) -> None:
        """Wait until the decode nodes have got so many requests."""
        await until_true(lambda: sum(len(node.seen) for node in self.decode) == requests, timeout_s=PATIENCE_S)

    async def until(self, node: FakeVllm, state: str) -> None:
        there = {"state": state}
        await until(self.nodes, lambda nodes: nodes.get(node.url, {}).items() >= there.items(), timeout_s=PATIENCE_S)

    async def until_whole(self) -> None:
        """Wait until every worker answers and uses every node."""

        def is_whole(state: dict[str, Any]) -> bool:
            ready = all(node["state"] == "ready" for node in state["nodes"])
            return ready and all(each["pid"] for each in state["workers"])

        await until(self.state, is_whole, timeout_s=PATIENCE_S)

    async def kill_one(self) -> None:
        """SIGKILL a worker and wait until another has its slot."""
        victim, *_ = before = await self.pids()
        os.kill(victim, signal.SIGKILL)
        await until(self.pids, lambda pids: victim not in pids and len(pids) == len(before), timeout_s=PATIENCE_S)

    async def ask_while_one_is_stopped(self, *calls: tuple[str, dict[str, Any] | None]) -> list[httpx.Response]:
        """Ask until a worker that runs takes the connection; the one that is stopped may have taken some."""
        stopped = (await self.pids())[0]
        os.kill(stopped, signal.SIGSTOP)
        got: list[httpx.Response] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(got) < len(calls):
                    path, body = calls[len(got)]
                    try:
                        async with asyncio.timeout(3):
                            got.append(await self.ask("POST" if body else "GET", path, json=body))
                    except TimeoutError:
                        continue
        finally:
            os.kill(stopped, signal.SIGCONT)
        return got


def total(name: str, metrics: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in metrics.splitlines() if re.match(rf"{name}[{{ ]", line))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    """A proxy process with workers in front of fake nodes."""
    folder = tmp_path_factory.mktemp("proxy")
    keys = folder / "keys"
    keys.write_text(json.dumps({"keys": {name: {"key": KEYS[name], **limits} for name, limits in LIMITS.items()}}))
    flags = ("--workers", str(WORKERS), "--api-keys-file", str(keys))
    async with proxy_process(folder, *flags, decode=2) as one:
        made = Proxy(one.process, one.port, one.prefill, one.decode, one.fabric, one.log)
        await made.until_whole()
        yield made


@pytest.fixture(autouse=True)
def _fresh(running: Proxy) -> None:
    for node in (*running.prefill, *running.decode):
        node.seen.clear()


async def test_whoever_looks_at_the_dashboard_sees_the_requests_of_all(running: Proxy) -> None:
    """Whichever worker is asked."""
    seen: list[dict[str, Any]] = []
    before = await running.counted()

    async def are_seen(requests: int, views: int) -> bool:
        """Look, as often as a page may and nothing is forgotten; a worker that is late to tell is asked again."""
        await asyncio.sleep(0.05)
        view = (await running.ask("GET", FEED)).json()
        if view["workers"]["answering"] == WORKERS and len(view["requests"]["recent"]) == requests:
            seen.append(view)
        return len(seen) >= views

    await until_true(lambda: are_seen(0, views=1), timeout_s=PATIENCE_S)  # all watch from here on
    seen.clear()
    asked = [asyncio.create_task(running.complete(stream=True)) for _ in range(12)]
    await until_true(lambda: are_seen(12, views=4), timeout_s=PATIENCE_S)
    got = await asyncio.gather(*asked)

    assert {each.status_code for each in got} == {200}
    assert {each.headers["x-request-id"] for each in got} == {
        request["id"] for request in seen[0]["requests"]["recent"]
    }
    assert [each["workers"] for each in seen] == [{"answering": WORKERS, "of": WORKERS}] * 4
    assert [sum(each["counters"]["requests"].values()) for each in seen] == [before + 12] * 4


async def test_any_worker_that_is_asked_answers_for_all(running: Proxy) -> None:
    """Counters, requests in flight and the list of workers are those of all. They share the port, with no other proxy."""
    before = await running.counted()
    got = await asyncio.gather(*(running.complete() for _ in range(30)))
    counted = [await running.counted() for _ in range(6)]
    for node in running.decode:
        node.may_answer.clear()
    open_ones = [asyncio.create_task(running.complete(stream=True)) for _ in range(6)]
    await running.until_seen(36)
    in_flight = [await running.counted("baton_requests_in_flight") for _ in range(4)]

    async def on_nodes() -> int:
        return sum(node["requests"] for node in (await running.nodes()).values())

    await until(on_nodes, lambda requests: requests == 6, timeout_s=PATIENCE_S)  # the prefill legs have ended
    seen_by_workers = [await on_nodes() for _ in range(4)]
    workers = (await running.state())["workers"]
    for node in running.decode:
        node.may_answer.set()
    streamed = await asyncio.gather(*open_ones)

    assert {each.status_code for each in (*got, *streamed)} == {200}
    assert counted == [before + 30] * 6
    assert in_flight == [6.0] * 4
    assert set(seen_by_workers) == {6}
    assert sum(each["requests"] for each in workers) == 6
    assert len({each["pid"] for each in workers}) == WORKERS
    with pytest.raises(OSError, match="Address already in use"):
        listen_on("127.0.0.1", int(running.url.rpartition(":")[2]), 2)


async def test_workers_count_the_requests_of_a_key_together(running: Proxy) -> None:
    """A key's limits are those of the whole proxy, whichever worker a connection comes to."""
    before = await running.counted("baton_key_requests_total")
    for node in running.decode:
        node.may_answer.clear()
    asked: list[asyncio.Task[httpx.Response]] = []

    def each_is_let_in_or_refused() -> bool:
        return sum(len(node.seen) for node in running.decode) + sum(each.done() for each in asked) == len(asked)

    for _ in range(8):
        asked.append(asyncio.create_task(running.complete("few")))
        await until_true(each_is_let_in_or_refused, timeout_s=PATIENCE_S)
    for node in running.decode:
        node.may_answer.set()
    at_once = sorted(each.status_code for each in await asyncio.gather(*asked))
    began_s = time.monotonic()
    often = [(await running.complete("rare")).status_code for _ in range(8)]
    minutes = int((time.monotonic() - began_s) / 60)
    counted = await running.counted("baton_key_requests_total") - before

    assert at_once == [200] * 4 + [429] * 4
    assert often[0] == 200
    assert often.count(200) <= 1 + minutes  # each worker by itself would let in one
    assert counted == 4 + often.count(200)


async def test_workers_that_are_killed_take_nothing_with_them(running: Proxy) -> None:
    """What operators have ordered reaches all workers, and their followers; so does what was counted. None of many orders is lost."""
    urls = [f"http://127.0.0.1:{port}" for port in range(1, 13)]
    extra = FakeVllm("decode", running.fabric)
    await extra.start()
    nodes = [*running.prefill, *running.decode]
    drained, removed = running.decode
    loaded = await running.ask("POST", "/v1/load_lora_adapter", json={"lora_name": "poet"})
    loads = [len(node.operated) for node in nodes]
    await running.order("", extra, role="decode")
    await running.ask("DELETE", NODES, params={"url": removed.url})
    await running.order("/drain", drained)
    await running.until(extra, "ready")
    at_first, restarts = await running.counted(), await running.counted("baton_worker_restarts_total")
    timed = await running.counted("baton_leg_seconds_count")
    first = await asyncio.gather(*(running.complete() for _ in range(10)))
    before, timed_before = await running.counted(), await running.counted("baton_leg_seconds_count")
    for _ in range(WORKERS):
        await running.kill_one()
    after, timed_after = await running.counted(), await running.counted("baton_leg_seconds_count")
    state = await running.state()
    second = await asyncio.gather(*(running.complete() for _ in range(10)))
    at_last, restarts = await running.counted(), await running.counted("baton_worker_restarts_total") - restarts
    seen = [len(node.seen) for node in (extra, drained, removed)]

    added = await asyncio.gather(*(running.ask("POST", NODES, json={"url": url, "role": "decode"}) for url in urls))
    states = [await running.state() for _ in range(6)]
    for url in (*urls, extra.url):
        await running.ask("DELETE", NODES, params={"url": url})
    await running.order("", removed, role="decode")
    await running.order("/drain", drained, draining=False)
    await running.until_whole()
    await asyncio.gather(*(running.complete() for _ in range(12)))
    await extra.stop()

    assert (loaded.status_code, loads) == (200, [1] * len(nodes))
    assert {each.status_code for each in (*first, *second)} == {200}
    assert [count - at_first for count in (before, after, at_last)] == [10, 10, 20]
    # Of both legs; a prefill leg that ends a second after its answer is cut.
    assert timed + 10 <= timed_before <= timed_after <= timed + 20
    assert restarts == WORKERS
    assert seen == [20, 0, 0]
    assert {each["url"]: each["state"] for each in state["nodes"] if each["role"] == "decode"} == {
        drained.url: "draining",
        extra.url: "ready",
    }
    assert state["removed"] == [{"role": "decode", "url": removed.url}]
    assert {each.status_code for each in added} == {201}
    for each in states:
        assert set(urls) <= {node["url"] for node in each["nodes"]}
        assert each["sources"][-1]["urls"] == [*dict.fromkeys(each["sources"][-1]["urls"])]
    assert all(node.seen for node in running.decode)


async def test_requests_go_on_while_workers_die(running: Proxy) -> None:
    """Connections that wait to be accepted are taken by another worker; only what a worker was serving breaks with it.

    The listening sockets outlive all workers: while all of them are dead no client is refused, and the wait is short.
    """
    stop = asyncio.Event()
    outcomes: list[int | str] = []

    async def client() -> None:
        while not stop.is_set():
            try:
                outcomes.append((await running.complete()).status_code)
            except httpx.ConnectError:
                outcomes.append("refused")
            except httpx.HTTPError:
                outcomes.append("broken")

    clients = [asyncio.create_task(client()) for _ in range(4)]
    for _ in range(2):
        await running.kill_one()
        enough = outcomes.count(200) + 12
        await until_true(lambda: outcomes.count(200) >= enough, timeout_s=PATIENCE_S)  # noqa: B023
    stop.set()
    await asyncio.gather(*clients)
    for pid in await running.pids():
        os.kill(pid, signal.SIGKILL)
    got = await asyncio.gather(*(running.complete() for _ in range(6)), return_exceptions=True)
    await running.until_whole()

    assert {each.status_code for each in got if isinstance(each, httpx.Response)} == {200}
    assert not [each for each in got if isinstance(each, httpx.ConnectError)]
    assert set(outcomes) <= {200, "broken"}
    assert outcomes.count("broken") <= 2 * len(clients)  # what a worker was serving when it died


async def test_a_worker_that_hangs_does_not_stop_the_others(running: Proxy) -> None:
    """What it has counted is still shown; what operators order holds in it as soon as it goes on."""
    await asyncio.gather(*(running.complete() for _ in range(9)))
    before, node = await running.counted(), running.decode[0]
    during, drained = await running.ask_while_one_is_stopped(("/metrics", None), (f"{NODES}/drain", {"url": node.url}))
    await running.until(node, "draining")
    seen = len(node.seen)
    await asyncio.gather(*(running.complete() for _ in range(12)))
    after = len(node.seen)
    await running.order("/drain", node, draining=False)
    await running.until_whole()

    assert total("baton_requests_total", during.text) == before
    assert f"baton_workers {WORKERS - 1}.0" in during.text
    assert drained.status_code == 200
    assert after == seen


async def test_all_workers_give_their_streams_of_a_node_away(running: Proxy) -> None:
    """Any of them may be asked to. One that is stopped hears of it later."""
    source, target = running.decode
    before = await running.counted("baton_streams_moved_total")
    await running.order("/drain", target)
    for node in running.decode:
        node.change(first_tokens="3-alike", both_ways=True, control_addresses=["tcp://127.0.0.1:9200"])
    source.fault, probes = "stall", [node.probes + 3 * WORKERS for node in running.decode]
    await until_true(  # by then each worker has read that
        lambda: all(node.probes >= most for node, most in zip(running.decode, probes, strict=True)),
        timeout_s=PATIENCE_S,
    )
    asked = [asyncio.create_task(running.complete(stream=True, max_tokens=9)) for _ in range(12)]
    await until_true(lambda: source.stalled == 12, timeout_s=PATIENCE_S)
    source.fault = ""
    await running.order("/drain", target, draining=False)
    await running.until_whole()
    (ordered,) = await running.ask_while_one_is_stopped((f"{NODES}/evacuate", {"url": source.url}))
    got = await asyncio.gather(*asked)
    await running.until_whole()  # each worker answers what is asked of all
    counted = await running.counted("baton_streams_moved_total") - before

    assert ordered.status_code == 200
    assert {each.content for each in got} == {b"".join(events("/v1/completions", 9))}
    # `streams_left` is since the last order, and the worker that was stopped may carry out one more, which it had been sent.
    assert counted == 12


async def test_sigterm_drains_all_workers(running: Proxy) -> None:
    """Every open stream is complete, new connections are refused, and the exit status is 0."""
    for node in running.decode:
        node.token_delay_s = 0.3
    streams = [asyncio.create_task(running.complete(stream=True)) for _ in range(9)]
    await running.until_seen(9)
    running.process.send_signal(signal.SIGTERM)
    got = await asyncio.gather(*streams)
    status = await asyncio.wait_for(running.process.wait(), PATIENCE_S)
    with pytest.raises(httpx.ConnectError):
        await running.complete()

    assert [each.content for each in got] == [b"".join(events("/v1/completions", 3))] * 9
    assert status == 0
