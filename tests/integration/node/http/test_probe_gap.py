"""A connection that dies in silence while it is idle, as behind a firewall that forgets it: the push after the pause fails."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import msgspec
import pytest

from baton.contracts.probe import MIB, Order, Place, Push, Pushed, Receive, Receiving
from baton.deploy.doctor.fit import Tried, Wanted, diagnose_links
from benchmarks.overlap.network import DATA_DEVICE, DECODE_DATA, PREFILL_DATA, Network, NetworkError
from tests.unit.deploy.doctor.known import decode, prefill

pytest.importorskip("mooncake")

PAUSED = "paused"
# The child as it is, but for its pause: it tells of it, and waits for a line.
PAUSING = f"""
import os, sys
from baton.kv_connector.engine import probe

def pause(seconds):
    print({PAUSED!r}, flush=True)
    sys.stdin.readline()

probe._wait = pause
probe.main()
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    if which("nft") is None or which("ss") is None:
        pytest.skip("nft or ss is missing")
    try:
        with Network() as network:
            yield network
    except NetworkError as exc:
        pytest.skip(str(exc))


def start(space: str, order: Order, *python: str) -> "subprocess.Popen[str]":
    """Start a child in a namespace and give it its order."""
    child = subprocess.Popen(
        ["ip", "netns", "exec", space, sys.executable, *python],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4])},
    )
    assert child.stdin is not None
    child.stdin.write(msgspec.json.encode(order).decode() + "\n")
    child.stdin.flush()
    return child


def line_of(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def forget_connections(space: str) -> None:
    """Let nothing more through on the connections that there are; new ones are welcome."""
    command = ["ip", "netns", "exec", space, "ss", "-Htn", "state", "established", "dst", DECODE_DATA]
    rows = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ports = sorted({row.split()[2].rpartition(":")[2] for row in rows})
    assert ports
    chain = f"type filter hook output priority 0; oifname {DATA_DEVICE} tcp sport {{ {', '.join(ports)} }} drop"
    rules = f"table ip baton_gap {{\n chain out {{\n {chain}\n }}\n}}\n"
    subprocess.run(["ip", "netns", "exec", space, "nft", "-f", "-"], input=rules, text=True, check=True)


def test_a_connection_that_is_forgotten_while_idle_is_named(network: Network) -> None:
    """The pushes before the pause worked, so it is the gap and nothing else."""
    receiving = Order(place=Place(host=DECODE_DATA, protocol="tcp"), what=Receive(seconds=100))
    receiver = start(network.decode, receiving, "-m", "baton.kv_connector.engine.probe")
    target = msgspec.json.decode(line_of(receiver), type=Receiving)
    what = Push(session=target.session, address=target.address, size_bytes=MIB, idle_s=5)
    pusher = start(network.prefill, Order(place=Place(host=PREFILL_DATA, protocol="tcp"), what=what), "-c", PAUSING)
    try:
        assert line_of(pusher) == PAUSED
        forget_connections(network.prefill)
        assert pusher.stdin is not None
        pusher.stdin.write("\n")
        pusher.stdin.flush()
        pushed = msgspec.json.decode(line_of(pusher), type=Pushed)
    finally:
        for child in (receiver, pusher):
            child.communicate(timeout=20)

    tried = Tried(prefill=prefill(), decode=decode(), push=pushed, idle_s=5)
    found = diagnose_links([tried], Wanted(min_mbit_s=0, max_latency_ms=60_000))
    assert [finding.code for finding in found] == ["idle-gap"]
