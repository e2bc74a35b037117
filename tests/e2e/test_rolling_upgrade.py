"""A deployment of an earlier release goes over to this one, process by process, under load: no request fails, and every answer is one server's.

Two prefill nodes, two decode nodes, two proxies; clients ask the proxies in turn, as a load balancer does, and half of them read streams. The new nodes also send and
receive, and the new proxies return answers, which nothing of the earlier release knows. With -s the times and the answers' paths are printed.
"""

import asyncio
import itertools
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED, PATH_HEADER
from tests.e2e.client import body_for
from tests.e2e.fidelity import answers, choose_prompts
from tests.e2e.stack import ANSWER_TIMEOUT_S, FLOAT32, Server, Stack, stack_on
from tests.e2e.waiting import leftovers
from tests.support.old_release import RELEASES, fork_server, unpack
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(900)]

CLIENTS: Final = 4
PROMPTS: Final = 13  # so that each is asked of both proxies, as a stream and not
GONE_WITHIN_S: Final = 60.0
USED_WITHIN_S: Final = 60.0
LOAD_S: Final = 2.0  # with each state of the deployment
EARLIEST: Final = next(iter(RELEASES))
NOT_SIGNED: Final = ("bad_signature", "malformed_params", "params_version")  # what a node refuses in a leg's parameters


class Deployment(NamedTuple):
    new: Stack
    prefill: list[Server]
    decode: list[Server]
    proxies: list[Server]

    @property
    def nodes(self) -> list[Server]:
        """In the order in which they are upgraded."""
        return [node for pair in zip(self.prefill, self.decode, strict=True) for node in pair]


@pytest.fixture(scope="module", params=RELEASES)
def old(stack: Stack, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Starts processes of an earlier release, of the same cluster."""
    tree = tmp_path_factory.mktemp("release")
    try:
        unpack(RELEASES[request.param], tree)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"commit {RELEASES[request.param]} is not here: the clone is shallow, or there is no git ({exc})")
    with fork_server(tree, tree / "zygote.log") as server, stack_on(server, tmp_path_factory.mktemp("old")) as running:
        running.secret_file.write_text(stack.secret_file.read_text())
        running.token = stack.token
        yield running


@pytest.fixture
def deployment(stack: Stack, old: Stack, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """All of it of the earlier release, in float32."""
    with old.stopping():
        prefill = [old.node("prefill", *FLOAT32, name=f"prefill-{number}") for number in range(2)]
        decode = [old.node("decode", *FLOAT32, name=f"decode-{number}") for number in range(2)]
        # The earliest does not have it; a later one would place prompts by what nodes cost on a loaded machine.
        env = {"BATON_PROXY_PLACEMENT": None} if request.node.callspec.params["old"] == EARLIEST else {}
        proxies = [old.proxy(prefill, decode, name=f"proxy-{number}", env=env) for number in range(2)]
        assert [is_new(node) for node in (*prefill, *decode)] == [False] * 4
        yield Deployment(stack, prefill, decode, proxies)


class Load:
    """Clients that ask one prompt after the other, until told to stop."""

    def __init__(self, model: str, prompts: Sequence[list[int]], wanted: Sequence[list[int]]) -> None:
        self.urls: list[str] = []  # of proxies that take requests
        self.paths: Counter[str] = Counter()
        self.problems: list[str] = []
        self.step = ""  # what is being done
        self._model = model
        self._prompts = prompts
        self._wanted = wanted
        self._numbers = itertools.count()
        self._stop = asyncio.Event()

    async def during(self, acts: Sequence[tuple[str, Callable[[], None]]]) -> None:
        """Do one thing after the other, each in a thread, while clients ask."""
        clients = [asyncio.create_task(self._ask_on()) for _ in range(CLIENTS)]
        try:
            for self.step, act in acts:
                before, began_s = sum(self.paths.values()), time.monotonic()
                await asyncio.to_thread(act)
                took_s = time.monotonic() - began_s
                await asyncio.sleep(LOAD_S)
                print(f"{self.step}: {took_s:.1f} s; {sum(self.paths.values()) - before} answers with what came after")
        finally:
            self._stop.set()
            await asyncio.gather(*clients)

    async def _ask_on(self) -> None:
        unshared = httpx.Limits(max_keepalive_connections=0)  # an idle one may be closed as a request is sent on it
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, limits=unshared) as http:
            while not self._stop.is_set():
                number = next(self._numbers)
                url, index = self.urls[number % len(self.urls)], number % len(self._prompts)
                body = body_for(self._model, self._prompts[index], stream=number % 4 < 2)
                body["cache_salt"] = str(number // len(self._prompts))  # else all would soon be in the prefix caches
                try:
                    tokens, path = await ask(http, url, body)
                except (httpx.HTTPError, AssertionError) as exc:
                    self.problems.append(f"{self.step}: request {number}: {exc!r}")
                    continue
                self.paths[path] += 1
                if tokens != self._wanted[index]:
                    self.problems.append(f"{self.step}: request {number} ({path}): other tokens: {tokens}")


async def ask(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> tuple[list[int], str]:
    """Return an answer's tokens, and the path that it took."""
    if not body["stream"]:
        response = await http.post(f"{url}/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["token_ids"], response.headers.get(PATH_HEADER, "")
    tokens, last = list[int](), ""
    async with http.stream("POST", f"{url}/v1/completions", json=body) as got:
        assert got.status_code == 200, await got.aread()
        async for line in got.aiter_lines():
            last = line.removeprefix("data: ") or last
            if line.startswith("data: {"):
                event: dict[str, Any] = json.loads(last)
                assert "error" not in event, event
                tokens += event["choices"][0]["token_ids"]
    assert last == "[DONE]", f"the stream ended with {last!r}"
    return tokens, got.headers.get(PATH_HEADER, "")


def is_new(node: Server) -> bool:
    return "both_ways" in node.info()


def stop(server: Server) -> None:
    """SIGTERM, and wait for the end."""
    assert server.child is not None
    server.child.terminate()
    assert server.child.wait(GONE_WITHIN_S) == 0, server.tail()


def upgrade_node(deployment: Deployment, node: Server) -> None:
    """Stop it, start it on this release, wait until both proxies use it."""
    assert_all_parameters_understood(node)
    stop(node)
    node.forkserver = deployment.new.forkserver
    node.argv += ["--both-ways", "true"]
    if "--control-port" not in node.argv:
        node.argv += ["--control-port", str(free_port())]
    node.spawn()
    node.wait_ready()
    for proxy in deployment.proxies:
        eventually(lambda proxy=proxy: state_of(proxy, node) == "ready", USED_WITHIN_S)  # type: ignore[misc]
    assert is_new(node)


def upgrade_proxy(deployment: Deployment, proxy: Server, load: Load) -> None:
    """Take it out of the balancer, stop it, start it on this release, take it in again."""
    load.urls = [each.url for each in deployment.proxies if each is not proxy]
    time.sleep(0.5)  # for requests that are on their way
    stop(proxy)
    proxy.forkserver = deployment.new.forkserver
    proxy.env |= {"BATON_PROXY_PLACEMENT": "pairs", "BATON_PROXY_RETURN_ANSWERS": "on"}
    proxy.spawn()
    proxy.wait_ready()
    load.urls = [each.url for each in deployment.proxies]


def state_of(proxy: Server, node: Server) -> str:
    nodes = proxy.http.get(proxy.url + "/ready").json()["nodes"]
    return next(str(each["state"]) for each in nodes if each["url"] == node.url)


def assert_all_parameters_understood(node: Server) -> None:
    """It has refused no leg for what a proxy said of it."""
    refused = node.transfers()["refused"]
    assert {kind: count for kind, count in refused.items() if kind in NOT_SIGNED and count} == {}, node.name


@pytest.mark.parametrize("first", ["nodes", "proxies"])
def test_a_rolling_upgrade_fails_no_request(stack: Stack, deployment: Deployment, first: str) -> None:
    """Either order works: an old proxy before new nodes, and a new one before old nodes."""
    prompts = choose_prompts(PROMPTS)
    plain = stack.plain(*FLOAT32)
    plain.wait_ready()
    wanted = [[*answer.tokens] for answer in answers(plain.url, stack.model, prompts)]
    stack.stop(plain)
    load = Load(stack.model, prompts, wanted)
    load.urls = [proxy.url for proxy in deployment.proxies]
    nodes = [(f"upgrade {node.name}", partial(upgrade_node, deployment, node)) for node in deployment.nodes]
    proxies = [
        (f"upgrade {proxy.name}", partial(upgrade_proxy, deployment, proxy, load)) for proxy in deployment.proxies
    ]
    acts = [*nodes, *proxies] if first == "nodes" else [*proxies, *nodes]

    asyncio.run(load.during([("all old", lambda: time.sleep(LOAD_S)), *acts]))

    print(f"{first} first: {load.paths.total()} answers: {dict(load.paths)}")
    assert load.problems == []
    assert load.paths[DISAGGREGATED] > 0.8 * load.paths.total()
    for node in deployment.nodes:
        assert_all_parameters_understood(node)
    assert leftovers(*deployment.nodes) == []
