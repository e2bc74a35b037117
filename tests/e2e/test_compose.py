"""compose.yaml's services, run for real without a container engine: scaled up and down while clients ask, and nobody notices.

Every process has a network and mounts of its own; its command, environment, volumes and health check are those of the file, as
docker-compose itself reads it. Members are found by name, from a name server as an engine has one.
"""

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from contracts.http import DISAGGREGATED, PATH_HEADER
from deploy.embedded_model import WEIGHTS
from deploy.forkserver import ForkServer
from deploy.overlap.network import NetworkError
from tests.support.compose import compose_files, rendered
from tests.support.composed.composition import Composition

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

CLIENTS = 4
TOKENS = 32
PATIENCE_S = 90.0
PROMPT = "The harbour of Port Amber lies at the mouth of the river, and every evening the boats come home. "


@pytest.fixture
def composition(tmp_path: Path) -> Iterator[Composition]:
    """The base file's services; nothing runs yet."""
    document = rendered(compose_files())
    threads = {name: document["services"]["decode"]["environment"][name] for name in ("OMP_NUM_THREADS",)}
    environ = {"TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1", **threads}
    with ForkServer(log=tmp_path / "zygote.log", environ=dict(os.environ) | environ) as forkserver:
        try:
            with Composition(document, forkserver, tmp_path, {"/opt/embedded-model": str(WEIGHTS)}) as made:
                yield made
        except NetworkError as exc:
            pytest.skip(str(exc))


class Load:
    """Clients that ask one streaming request after the other, all answers counted."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = asyncio.Event()
        self.paths: Counter[str] = Counter()
        self.problems: list[str] = []

    async def run(self) -> None:
        """Ask until told to stop."""
        async with httpx.AsyncClient(timeout=60) as http:
            await asyncio.gather(*(self._client(http, number) for number in range(CLIENTS)))

    def stop(self) -> None:
        """Let each client end its request."""
        self._stop.set()

    @property
    def answered(self) -> int:
        """How many requests have been answered wholly."""
        return sum(self.paths.values())

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        asked = 0
        while not self._stop.is_set():
            asked += 1
            try:
                await self._ask(http, f"{number}-{asked}: {PROMPT * (1 + asked % 8)}")
            except (httpx.HTTPError, AssertionError, KeyError, ValueError) as exc:
                self.problems.append(f"{type(exc).__name__}: {exc}")

    async def _ask(self, http: httpx.AsyncClient, prompt: str) -> None:
        body = {"model": "baton-embedded", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
        body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        async with http.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        assert response.status_code == 200, lines
        assert lines[-1] == "[DONE]", lines[-1]
        events = [json.loads(line) for line in lines[:-1]]
        assert events[-1]["usage"]["completion_tokens"] == TOKENS, events[-1]
        self.paths[response.headers[PATH_HEADER]] += 1


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until something holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


def nodes(url: str) -> list[dict[str, str]]:
    """The proxy's members."""
    found: list[dict[str, str]] = httpx.get(f"{url}/ready").json()["nodes"]
    return found


def used(url: str) -> set[str]:
    """The nodes that have answered something, by the proxy's own count."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {line.split('url="')[1].split('"')[0] for line in lines if line.startswith("baton_leg_seconds_count{")}


def scale_up_and_down(composition: Composition, url: str, load: Load) -> None:
    """`--scale prefill=2 --scale decode=3`, until all have had work; then one of each again."""
    before = {node["url"] for node in nodes(url)}
    composition.scale("prefill", 2)
    composition.scale("decode", 3)
    wait_for(lambda: sum(node["state"] == "ready" for node in nodes(url)) == 5, "five nodes are ready")
    added = {node["url"] for node in nodes(url)} - before
    wait_for(lambda: added <= used(url), "all nodes have had work")
    composition.scale("prefill", 1)
    composition.scale("decode", 1)
    wait_for(lambda: {node["url"] for node in nodes(url)} == before, "those that have ended are members no more")
    goal = load.answered + 3 * CLIENTS
    wait_for(lambda: load.answered >= goal or bool(load.problems), "requests go on")


async def under_load(composition: Composition, url: str) -> Load:
    """Scale while clients ask."""
    load = Load(url)
    clients = asyncio.create_task(load.run())
    try:
        await asyncio.to_thread(scale_up_and_down, composition, url, load)
    finally:
        load.stop()
        await clients
    return load


def test_services_are_scaled_up_and_down_and_no_request_fails(composition: Composition) -> None:
    """From 1P1D to 2P3D and back by DNS membership alone; those that go drain within their stop grace and end with 0."""
    composition.up()
    url = composition.url("proxy", "front")
    addresses = {node["url"] for node in nodes(url)}
    began_s = time.monotonic()

    load = asyncio.run(under_load(composition, url))

    print(f"{load.answered} requests in {time.monotonic() - began_s:.0f} s: {dict(load.paths)}")
    assert load.problems == []
    assert load.paths[DISAGGREGATED] > load.answered / 2
    assert addresses == {composition.url(role, "nodes") for role in ("prefill", "decode")}
    assert {file.name for file in composition.volume("secrets").iterdir()} == {"cluster", "admin"}
    for role in ("proxy", "prefill", "decode"):
        composition.stop(composition.containers(role)[0])
