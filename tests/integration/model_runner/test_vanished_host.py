"""A host that vanishes, between two network namespaces: both ends of a lifeline hear of it though neither hung up."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.overlap.network import NetworkError, run
from tests.support.network_spaces import Network, Seat

NETWORK = "hosts"
HEARD_WITHIN_S = 60.0
RANK = """
import queue, sys
from baton.contracts.secret import ClusterSecret
from baton.model_runner.rank_monitor import RankLink, RankMonitor

heard, secret = queue.SimpleQueue(), ClusterSecret(b"the secret of this cluster")
told = lambda who, farewell: heard.put(f"{who} {farewell}")
if sys.argv[1] == "hub":
    hub = RankMonitor(sys.argv[2], secret)
    print(hub.address[1], flush=True)
    hub.wait_for({1}, told)
else:
    end = RankLink((sys.argv[2], int(sys.argv[3])), secret, 1, told)
print("tied", flush=True)
print(heard.get(), flush=True)
"""


@pytest.fixture
def seats() -> Iterator[tuple[Seat, Seat]]:
    """Two hosts on one network."""
    try:
        with Network(NETWORK) as network:
            yield network.add("h0"), network.add("h1")
    except NetworkError as exc:
        pytest.skip(str(exc))


def start(seat: Seat, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        ["ip", "netns", "exec", seat.space, sys.executable, "-c", RANK, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
    )


def says(rank: "subprocess.Popen[str]") -> str:
    """The next line, "" if there is none in time."""
    assert rank.stdout is not None
    is_there, _, _ = select.select([rank.stdout], [], [], HEARD_WITHIN_S)
    return rank.stdout.readline().strip() if is_there else ""


@pytest.mark.parametrize(
    "idle_s",
    [
        pytest.param(0.0, id="what was sent last is lost"),
        pytest.param(1.0, id="everything has arrived", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.timeout(2 * HEARD_WITHIN_S)
def test_both_ends_notice_a_cut_cable(idle_s: float, seats: tuple[Seat, Seat]) -> None:
    """No packet says so: the kernels find out, and neither process has to be in time for anything."""
    address = seats[0].address
    hub = start(seats[0], "hub", address)
    end = start(seats[1], "end", address, says(hub))
    try:
        assert [says(hub), says(end)] == ["tied", "tied"]
        time.sleep(idle_s)

        run(f"ip -n {seats[1].space} link set eth0 down")

        assert says(hub) == "rank 1 False"
        assert says(end) == "the node's first rank False"
    finally:
        for rank in (hub, end):
            rank.kill()
            rank.communicate()
