"""A decode node is killed, stopped, drained or cut off in the middle of a stream: the client has one server's stream, whatever kind it is."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest

from baton.proxy.request.endpoints import COMPLETIONS
from tests.e2e.conftest import Trio
from tests.e2e.stack import CLOSE, FLOAT32, TOOLS, Server, Stack
from tests.e2e.test_cut_streams import CASES, comparable, emoji_tokens
from tests.e2e.valve import Valve
from tests.support import slow_step

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ADMIN = "an admin token for tests"
SETTINGS: dict[str, str | None] = {
    "BATON_PROXY_STALL_TIMEOUT_S": "0.5",
    "BATON_PROXY_PROBE_TIMEOUT_S": "0.5",
    "BATON_PROXY_PROBE_INTERVAL_S": "0.2",
    "BATON_PROXY_DRAIN_HANDOVER_S": "0",
}
WITH_TOOLS = ["greedy", "seeded", "cut characters", "JSON", "regular expression", "tools auto", "tools required"]
WITH_TOOLS += ["three answers", "message", "message with a tool", "response", "log probabilities"]
STEP_S = 0.06  # of a decode node: most kinds of answer last more than a second
FAULTS = ["kill", "stop", "drain", "cut"]
PLACES = ["first", "middle", "last"]


class Nodes(NamedTuple):
    """Two decode nodes behind valves."""

    decode: list[Server]
    valves: list[Valve]
    proxy: Server


@pytest.fixture(scope="module")
def nodes(stack: Stack, trio: Trio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    token = tmp_path_factory.mktemp("admin") / "token"
    token.write_text(f"{ADMIN}\n")
    flags = (*FLOAT32, *CLOSE, *TOOLS, *slow_step.FLAGS)
    slow = {slow_step.STEP_S: str(STEP_S)}
    with stack.stopping():
        decode = [stack.node("decode", *flags, name=f"decode{number}", env=slow) for number in range(2)]
        for server in decode:
            server.wait_ready()
        with Valve(decode[0].url) as first, Valve(decode[1].url) as second:
            valves = [first, second]
            proxy = stack.proxy([trio.prefill], valves, "--admin-token-file", str(token), env=SETTINGS)
            yield Nodes(decode, valves, proxy)
            print({name: value for name, value in proxy.metrics().items() if "resumed_total{" in name})


def disturbed(nodes: Nodes, path: str, body: dict[str, Any], after: int, fault: str) -> bytes:
    """A stream whose decode node is struck after so many events."""
    read, mend = b"", None
    with httpx.stream("POST", nodes.proxy.url + path, json=body, timeout=60) as got:
        assert got.status_code == 200, got.read()
        for piece in got.iter_raw():
            read += piece
            if mend is None and read.count(b"\n\n") >= after:
                mend = strike(nodes, fault)
    assert mend is not None, read
    mend()
    until_ready(nodes)
    return read


def strike(nodes: Nodes, fault: str) -> Callable[[], None]:
    """Strike the decode node that has a request; return what mends it."""
    found = nodes.proxy.get("/ready")["nodes"]
    busy = [node["url"] for node in found if node["role"] == "decode" and node["requests"]]
    number = next((at for at, valve in enumerate(nodes.valves) if valve.url in busy), 0)
    node, valve = nodes.decode[number], nodes.valves[number]
    if fault == "kill":
        node.kill()
        return node.spawn
    if fault == "stop":
        node.signal(signal.SIGSTOP)
        return lambda: node.signal(signal.SIGCONT)
    if fault == "cut":
        valve.whole.clear()
        return valve.whole.set
    drain(nodes, valve, draining=True)
    return lambda: drain(nodes, valve, draining=False)


def drain(nodes: Nodes, valve: Valve, *, draining: bool) -> None:
    """Tell the proxy."""
    order = {"url": valve.url, "draining": draining}
    headers = {"authorization": f"Bearer {ADMIN}"}
    httpx.post(f"{nodes.proxy.url}/admin/nodes/drain", json=order, headers=headers, timeout=10).raise_for_status()


def until_ready(nodes: Nodes) -> None:
    """Wait until all nodes are in use, and have nothing left of what was disturbed."""
    for node in nodes.decode:
        node.wait_ready()
    deadline = time.monotonic() + 60
    while True:
        found = nodes.proxy.http.get(f"{nodes.proxy.url}/ready").json()["nodes"]
        if all(node["state"] == "ready" and not node["requests"] for node in found):
            break
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    for node in nodes.decode:
        assert not node.integrity()["findings"]


def resumed(nodes: Nodes) -> float:
    """How many streams have gone on on another node."""
    return nodes.proxy.metrics().get("baton_streams_resumed_total", 0.0)


def event_of(events: int, place: str) -> int:
    """After which of so many events a node is struck."""
    return {"first": 2, "middle": events // 2, "last": events - 5}[place]


def cells(kinds: list[str], quick: set[tuple[str, str, str]]) -> list[Any]:
    """All of them; but for a few, only where everything is tried."""
    every = [(kind, fault, place) for kind in kinds for fault in FAULTS for place in PLACES]
    return [cell if cell in quick else pytest.param(*cell, marks=pytest.mark.exhaustive) for cell in every]


QUICK = {
    ("seeded", "kill", "middle"),
    ("JSON", "cut", "middle"),
    ("three answers", "drain", "middle"),
}


@pytest.mark.parametrize(("kind", "fault", "place"), cells(WITH_TOOLS, QUICK))
def test_a_stream_survives(trio: Trio, nodes: Nodes, kind: str, fault: str, place: str) -> None:
    """Token by token, though half of it came from another node."""
    path, more = CASES[kind]
    body = {"model": trio.model, "stream": True, **more}
    if body.pop("emoji", False):
        body |= {"allowed_token_ids": emoji_tokens(trio), "repetition_penalty": 1.3}
    expected = trio.plain.ask(path, body).content
    after = event_of(expected.count(b"\n\n"), place)

    before = resumed(nodes)
    got = disturbed(nodes, path, body, after, fault)

    # At the first event the decode node's own stream may not have begun, and another leg is asked in its place; a drain is noticed at the next look.
    if place == "middle" or (place == "last" and fault != "drain"):
        assert resumed(nodes) == before + 1
    assert comparable(got) == comparable(expected)


@pytest.mark.parametrize(("seed", "fault"), [pytest.param(None, "kill", marks=pytest.mark.exhaustive), (3, "stop")])
def test_a_whole_answer_goes_on(trio: Trio, nodes: Nodes, seed: int | None, fault: str) -> None:
    """Its decode node is struck when it has named some tokens; the next one starts with them."""
    body = {"model": trio.model, "prompt": "The sea", "max_tokens": 40, "ignore_eos": True}
    body |= {"temperature": 0} if seed is None else {"temperature": 1.0, "seed": seed}
    expected = trio.plain.ask(COMPLETIONS, body).json()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        asked = pool.submit(nodes.proxy.ask, COMPLETIONS, body)
        time.sleep(30 * STEP_S)
        mend = strike(nodes, fault)
        got = asked.result()
        took = time.monotonic() - began
    mend()
    until_ready(nodes)
    print(f"a whole answer of 40 tokens, {fault} at about the 25th, took {took:.1f} s")

    assert got.json()["choices"] == expected["choices"]
    assert got.json()["usage"]["completion_tokens"] == 40
    assert sum(node.transfers()["scheduler"]["totals"]["started"] for node in nodes.decode) >= 1
