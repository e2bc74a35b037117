"""compose.yaml's services, run for real without a container engine: scaled up and down while clients ask, and nobody notices.

Every process has a network and mounts of its own; its command, environment, volumes and health check are those of the file, as
docker-compose itself reads it. Members are found by name, from a name server as an engine has one.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from baton.contracts.http import DISAGGREGATED
from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.forkserver import ForkServer
from benchmarks.overlap.network import NetworkError
from tests.e2e.load import Load, under_load
from tests.support.compose import compose_files, rendered
from tests.support.composed.composition import Composition

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

CLIENTS = 4
PATIENCE_S = 90.0


@pytest.fixture
def composition(forkserver: ForkServer, tmp_path: Path) -> Iterator[Composition]:
    """The base file's services; nothing runs yet."""
    try:
        with Composition(
            rendered(compose_files()), forkserver, tmp_path, {"/opt/embedded-model": str(WEIGHTS)}
        ) as made:
            yield made
    except NetworkError as exc:
        pytest.skip(str(exc))


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
    """`--scale prefill=2 --scale decode=2`, until all have had work; then one of each again."""
    before = {node["url"] for node in nodes(url)}
    composition.scale("prefill", 2)
    composition.scale("decode", 2)
    wait_for(lambda: sum(node["state"] == "ready" for node in nodes(url)) == 4, "four nodes are ready")
    added = {node["url"] for node in nodes(url)} - before
    wait_for(lambda: added <= used(url), "all nodes have had work")
    composition.scale("prefill", 1)
    composition.scale("decode", 1)
    wait_for(lambda: {node["url"] for node in nodes(url)} == before, "those that have ended are members no more")
    goal = load.answered + 3 * CLIENTS
    wait_for(lambda: load.answered >= goal or bool(load.problems), "requests go on")


def test_services_are_scaled_up_and_down_and_no_request_fails(composition: Composition) -> None:
    """From 1P1D to 2P2D and back by DNS membership alone; those that go drain within their stop grace and end with 0."""
    composition.up()
    url = composition.url("proxy", "front")
    addresses = {node["url"] for node in nodes(url)}
    began_s = time.monotonic()

    load = Load(lambda: url, clients=CLIENTS, pause_s=0.1)
    asyncio.run(under_load(load, lambda: scale_up_and_down(composition, url, load)))

    print(f"{load.answered} requests in {time.monotonic() - began_s:.0f} s: {dict(load.paths)}")
    assert load.problems == []
    assert load.paths[DISAGGREGATED] > load.answered / 2
    assert addresses == {composition.url(role, "nodes") for role in ("prefill", "decode")}
    assert {file.name for file in composition.volume("secrets").iterdir()} == {"cluster", "admin"}
    for role in ("proxy", "prefill", "decode"):
        composition.stop(composition.containers(role)[0])
