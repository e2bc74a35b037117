"""`proxy.workers`: several processes that are one proxy, whichever of them is asked and whichever of them dies."""

import asyncio
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster import ADMIN_TOKEN, COMPLETION, until_true
from tests.support.fake_answers import events
from tests.support.fake_vllm import Fabric, FakeVllm
from tests.support.proxy_process import PATIENCE_S, proxy_process, spawn, write_secret

WORKERS = 3
TLS = ssl.create_default_context()  # unused, but a client without one makes it, which takes 50 ms
NODES = "/admin/nodes"
REQUESTS = re.compile(r"^baton_requests_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy of several workers and the nodes behind it."""

    process: asyncio.subprocess.Process
    url: str
    prefill: list[FakeVllm]
    decode: list[FakeVllm]
    fabric: Fabric

    async def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Ask over a connection of its own: any worker may take it."""
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S, headers=headers, verify=TLS) as http:
            return await http.request(method, path, **more)

    async def complete(self, **changes: Any) -> httpx.Response:
        """Ask for a completion."""
        return await self.ask("POST", "/v1/completions", json={**COMPLETION, **changes})

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
        """Sum of a series' lines."""
        text = (await self.ask("GET", "/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line))

    async def until_whole(self) -> None:
        """Wait until every worker answers and uses every node."""

        async def is_whole() -> bool:
            state = await self.state()
            ready = all(node["state"] == "ready" for node in state["nodes"])
            return ready and all(each["pid"] for each in state["workers"])

        await until_true(is_whole, timeout_s=PATIENCE_S)

    async def kill_one(self) -> None:
        """SIGKILL a worker and wait until another has its slot."""
        victim, *_ = before = await self.pids()
        os.kill(victim, signal.SIGKILL)

        async def is_replaced() -> bool:
            found = await self.pids()
            return victim not in found and len(found) == len(before)

        await until_true(is_replaced, timeout_s=PATIENCE_S)


@asynccontextmanager
async def proxy(
    tmp_path: Path, *more: str, prefill: int = 1, decode: int = 2, workers: int = WORKERS
) -> AsyncIterator[Proxy]:
    """Run a proxy process with workers in front of fake nodes."""
    flags = ("--workers", str(workers), *more)
    async with proxy_process(tmp_path, *flags, prefill=prefill, decode=decode) as one:
        running = Proxy(one.process, one.url, one.prefill, one.decode, one.fabric)
        await running.until_whole()
        yield running


async def test_any_worker_that_is_asked_answers_for_all(tmp_path: Path) -> None:
    """Counters, requests in flight and the list of workers are those of all."""
    async with proxy(tmp_path) as running:
        got = await asyncio.gather(*(running.complete() for _ in range(30)))
        counted = [await running.counted() for _ in range(6)]
        for node in running.decode:
            node.may_answer.clear()
        open_ones = [asyncio.create_task(running.complete(stream=True)) for _ in range(6)]
        await until_true(lambda: sum(len(node.seen) for node in running.decode) == 36, timeout_s=PATIENCE_S)
        in_flight = [await running.counted("baton_requests_in_flight") for _ in range(4)]

        async def on_nodes() -> int:
            return sum(node["requests"] for node in (await running.nodes()).values())

        async def prefill_legs_have_ended() -> bool:
            return await on_nodes() == 6

        await until_true(prefill_legs_have_ended, timeout_s=PATIENCE_S)
        seen_by_workers = [await on_nodes() for _ in range(4)]
        workers = (await running.state())["workers"]
        for node in running.decode:
            node.may_answer.set()
        streamed = await asyncio.gather(*open_ones)

    assert {each.status_code for each in (*got, *streamed)} == {200}
    assert counted == [30.0] * 6
    assert in_flight == [6.0] * 4
    assert set(seen_by_workers) == {6}
    assert sum(each["requests"] for each in workers) == 6
    assert len({each["pid"] for each in workers}) == WORKERS


async def test_a_worker_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    """It is started again; what was counted, and what operators ordered, is there as before."""
    async with proxy(tmp_path) as running:
        extra = FakeVllm("decode", running.fabric)
        await extra.start()
        drained, removed = running.decode
        await running.ask("POST", NODES, json={"url": extra.url, "role": "decode"})
        await running.ask("DELETE", NODES, params={"url": removed.url})
        await running.ask("POST", f"{NODES}/drain", json={"url": drained.url})
        await until_true(lambda: _is(running, extra, "ready"), timeout_s=PATIENCE_S)
        first = [await running.complete() for _ in range(10)]
        before = await running.counted()
        timed_before = await running.counted("baton_leg_seconds_count")
        seen_before = len(drained.seen), len(removed.seen)
        for _ in range(WORKERS):
            await running.kill_one()
        after = await running.counted()
        timed_after = await running.counted("baton_leg_seconds_count")
        state = await running.state()
        second = [await running.complete() for _ in range(10)]
        at_last, restarts = await running.counted(), await running.counted("baton_worker_restarts_total")
        await extra.stop()

    assert {each.status_code for each in (*first, *second)} == {200}
    assert (before, after, at_last) == (10.0, 10.0, 20.0)
    assert (
        10 <= timed_before <= timed_after <= 20
    )  # of both legs; a prefill leg that ends a second after its answer is cut
    assert restarts == WORKERS
    assert len(extra.seen) == 20
    assert (len(drained.seen), len(removed.seen)) == seen_before == (0, 0)
    assert {each["url"]: each["state"] for each in state["nodes"] if each["role"] == "decode"} == {
        drained.url: "draining",
        extra.url: "ready",
    }
    assert state["removed"] == [{"role": "decode", "url": removed.url}]


async def test_what_operators_order_reaches_all_workers(tmp_path: Path) -> None:
    """An adapter is loaded once on each node, a removed node gets nothing more, and none of many orders is lost."""
    urls = [f"http://127.0.0.1:{port}" for port in range(1, 13)]
    async with proxy(tmp_path) as running:
        nodes, gone = [*running.prefill, *running.decode], running.decode[0]
        loaded = await running.ask("POST", "/v1/load_lora_adapter", json={"lora_name": "poet"})
        loads = [len(node.operated) for node in nodes]
        await running.ask("DELETE", NODES, params={"url": gone.url})
        without = await asyncio.gather(*(running.complete() for _ in range(12)))
        seen = len(gone.seen)
        await running.ask("POST", NODES, json={"url": gone.url, "role": "decode"})
        await until_true(lambda: _is(running, gone, "ready"), timeout_s=PATIENCE_S)
        again = [await running.complete() for _ in range(12)]
        added = await asyncio.gather(*(running.ask("POST", NODES, json={"url": url, "role": "decode"}) for url in urls))
        states = [await running.state() for _ in range(6)]

    assert (loaded.status_code, loads) == (200, [1] * len(nodes))
    assert {each.status_code for each in (*without, *again)} == {200}
    assert (seen, len(gone.seen) > 0) == (0, True)
    assert {each.status_code for each in added} == {201}
    for state in states:
        assert set(urls) <= {node["url"] for node in state["nodes"]}
        assert state["sources"][-1]["urls"] == [*dict.fromkeys(state["sources"][-1]["urls"])]


async def test_requests_go_on_while_workers_die(tmp_path: Path) -> None:
    """Connections that wait to be accepted are taken by another worker; only what a worker was serving breaks with it.

    The listening sockets outlive all workers: while all of them are dead no client is refused, and the wait is short.
    """
    async with proxy(tmp_path) as running:
        stop = asyncio.Event()
        outcomes: list[int | str] = []
        enough: list[int] = []

        async def client() -> None:
            while not stop.is_set():
                try:
                    outcomes.append((await running.complete()).status_code)
                except httpx.ConnectError:
                    outcomes.append("refused")
                except httpx.HTTPError:
                    outcomes.append("broken")

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for _ in range(3):
            await running.kill_one()
            enough.append(outcomes.count(200) + 12)
            await until_true(lambda: outcomes.count(200) >= enough[-1], timeout_s=PATIENCE_S)
        stop.set()
        await asyncio.gather(*clients)
        for pid in await running.pids():
            os.kill(pid, signal.SIGKILL)
        got = await asyncio.gather(*(running.complete() for _ in range(6)), return_exceptions=True)

    assert {each.status_code for each in got if isinstance(each, httpx.Response)} == {200}
    assert not [each for each in got if isinstance(each, httpx.ConnectError)]
    assert set(outcomes) <= {200, "broken"}
    assert outcomes.count("broken") <= 3 * len(clients)  # what a worker was serving when it died


async def test_sigterm_drains_all_workers(tmp_path: Path) -> None:
    """Every open stream is complete, new connections are refused, and the exit status is 0."""
    async with proxy(tmp_path) as running:
        for node in running.decode:
            node.token_delay_s = 0.3
        streams = [asyncio.create_task(running.complete(stream=True)) for _ in range(9)]
        await until_true(lambda: sum(len(node.seen) for node in running.decode) == 9, timeout_s=PATIENCE_S)
        running.process.send_signal(signal.SIGTERM)
        got = await asyncio.gather(*streams)
        status = await asyncio.wait_for(running.process.wait(), PATIENCE_S)
        with pytest.raises(httpx.ConnectError):
            await running.complete()

    assert [each.content for each in got] == [b"".join(events("/v1/completions", 3))] * 9
    assert status == 0


async def test_a_worker_that_hangs_does_not_stop_the_others(tmp_path: Path) -> None:
    """What it has counted is still shown; what operators order holds in it as soon as it goes on."""
    async with proxy(tmp_path) as running:
        [await running.complete() for _ in range(9)]
        before = await running.counted()
        stopped = (await running.pids())[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            during = await _until_answered(running, "/metrics")
            drained = await _until_answered(running, f"{NODES}/drain", {"url": running.decode[0].url})
        finally:
            os.kill(stopped, signal.SIGCONT)
        await until_true(lambda: _is(running, running.decode[0], "draining"), timeout_s=PATIENCE_S)
        seen = len(running.decode[0].seen)
        await asyncio.gather(*(running.complete() for _ in range(12)))

    assert sum(map(float, REQUESTS.findall(during.text))) == before == 9.0
    assert "baton_workers 2.0" in during.text
    assert drained.status_code == 200
    assert len(running.decode[0].seen) == seen


async def test_all_workers_give_their_streams_of_a_node_away(tmp_path: Path) -> None:
    """Any of them may be asked to. One that is stopped hears of it later."""
    async with proxy(tmp_path, decode=1) as running:
        (source,) = running.decode
        source.change(first_tokens="3-alike", both_ways=True, control_addresses=["tcp://127.0.0.1:9200"])
        source.fault, probes = "stall", source.probes + 3 * WORKERS  # by then each worker has read that
        await until_true(lambda: source.probes >= probes, timeout_s=PATIENCE_S)
        body = {**COMPLETION, "stream": True, "max_tokens": 9}
        asked = [asyncio.create_task(running.ask("POST", "/v1/completions", json=body)) for _ in range(12)]
        await until_true(lambda: source.stalled == 12, timeout_s=PATIENCE_S)
        source.fault = ""
        target = FakeVllm("decode", running.fabric)
        target.info = source.info
        await target.start()
        await running.ask("POST", NODES, json={"url": target.url, "role": "decode"})
        await running.until_whole()
        stopped = (await running.pids())[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            ordered = await _until_answered(running, f"{NODES}/evacuate", {"url": source.url})
        finally:
            os.kill(stopped, signal.SIGCONT)
        got = await asyncio.gather(*asked)
        await running.until_whole()  # each worker answers what is asked of all
        counted = await running.counted("baton_streams_moved_total")
        await target.stop()

    assert ordered.status_code == 200
    assert {each.content for each in got} == {b"".join(events("/v1/completions", 9))}
    assert (
        counted == 12
    )  # `streams_left` is since the last order, and the worker that was stopped may carry out one more, which it had been sent


async def test_the_port_is_the_supervisors(tmp_path: Path) -> None:
    """Its workers share it, another proxy is refused; if it is killed, its workers go along, and the port is free."""
    async with proxy(tmp_path) as running:
        port = running.url.rpartition(":")[2]
        second = await spawn("--port", port, "--workers", "2", "--secret-file", str(tmp_path / "secret"))
        _, stderr = await second.communicate()
        pids = await running.pids()
        running.process.kill()
        await until_true(lambda: not any(map(_lives, pids)), timeout_s=PATIENCE_S)

    assert second.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use".encode() in stderr


async def _until_answered(running: Proxy, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """Ask until a worker that runs takes the connection; the one that is stopped may have taken some."""
    for _ in range(20):
        try:
            async with asyncio.timeout(3):
                return await running.ask("POST" if body else "GET", path, json=body)
        except TimeoutError:
            continue
    raise AssertionError("no worker answered")


async def _is(running: Proxy, node: FakeVllm, state: str) -> bool:
    nodes = await running.nodes()
    return node.url in nodes and bool(nodes[node.url]["state"] == state)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_proxy_that_is_told_to_stop_before_it_has_started_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM between its temporary directory and its first worker."""
    script = f"""
import os, signal, sys
from baton.proxy import server
from baton.proxy.__main__ import main
server.listen_on = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(["--workers", "2", "--secret-file", {write_secret(tmp_path)!r}, "--decode", "http://127.0.0.1:1"]))
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # its name leaves room for those of sockets
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "TMPDIR": folder},
            cwd=Path(__file__).parents[3],
            timeout=PATIENCE_S,
            check=False,
        )

        assert (done.returncode, list(Path(folder).iterdir())) == (0, [])
