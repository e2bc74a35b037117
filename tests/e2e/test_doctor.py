"""`baton doctor` on a running deployment: nothing to say of a healthy one, and the name of each fault that is planted."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from baton.deploy.doctor import command
from benchmarks.overlap.network import (
    DATA_DEVICE,
    DECODE_DATA,
    DECODE_HTTP,
    PREFILL_DATA,
    PREFILL_HTTP,
    Network,
    NetworkError,
)
from tests.e2e.conftest import Trio
from tests.e2e.stack import FLOAT32, Server, Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

# No link is too slow, and no machine: what a loaded one measures is not judged here.
PATIENT = ("--min-mbit-s", "0.001", "--max-latency-ms", "60000", "--idle-gap", "0.2")
SLOW_MBIT_S = 20
WANTED_MBIT_S = 200
NO_DATA = f"""
table ip baton_doctor {{
  chain out {{
    type filter hook output priority 0; policy accept;
    oifname {DATA_DEVICE} tcp dport 15000-17999 drop
  }}
}}
"""
Report = dict[str, Any]


def doctor(capsys: pytest.CaptureFixture[str], secret_file: Path, *argv: str) -> Report:
    """Run the command; its exit status must agree with its report."""
    status = command.main(["--json", "--secret-file", str(secret_file), *argv])
    report: Report = json.loads(capsys.readouterr().out)
    assert status == (1 if report["wrong"] else 0)
    return report


def codes(report: Report) -> set[str]:
    """The kinds of findings."""
    return {finding["code"] for finding in report["findings"]}


def examine(capsys: pytest.CaptureFixture[str], stack: Stack, prefill: Server, decode: Server, *more: str) -> Report:
    """Look at one pair."""
    return doctor(capsys, stack.secret_file, "--prefill", prefill.url, "--decode", decode.url, *(more or PATIENT))


def test_a_healthy_stack_has_no_finding(trio: Trio, stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked through the proxy: both nodes, and a push that was made between them, twice."""
    before = trio.decode.transfers()["worker"]["totals"]

    report = doctor(capsys, stack.secret_file, "--proxy", trio.proxy.url, *PATIENT)

    assert report["findings"] == []
    assert {node["says"]["role"] for node in report["nodes"]} == {"prefill", "decode"}
    (pair,) = report["pairs"]
    assert min(pair[name] for name in ("mbit_s", "tokens_s", "latency_ms", "first_ms", "after_idle_ms")) > 0
    assert trio.decode.transfers()["worker"]["totals"] == before
    assert trio.decode.integrity()["findings"] == []


@pytest.fixture(scope="module")
def apart(stack: Stack) -> Iterator[tuple[Network, Server, Server]]:
    """A prefill and a decode node, each as if on a machine of its own."""
    with ExitStack() as stacked:
        try:
            network = stacked.enter_context(Network())
        except NetworkError as exc:
            pytest.skip(str(exc))
        places = (
            ("prefill", network.prefill, PREFILL_HTTP, PREFILL_DATA),
            ("decode", network.decode, DECODE_HTTP, DECODE_DATA),
        )
        nodes = [
            stack.node(
                role,
                *FLOAT32,
                "--advertise-host",
                data,
                name=f"apart-{role}",
                host=host,
                bind="0.0.0.0",
                netns=space,
                env={"VLLM_HOST_IP": data},
            )
            for role, space, host, data in places
        ]
        for node in nodes:
            node.wait_ready()
        prefill, decode = nodes
        yield network, prefill, decode
        for node in nodes:
            node.stop()


def test_nodes_on_two_machines_have_no_finding(
    apart: tuple[Network, Server, Server], stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control and data cross the link between them, which the doctor itself does not reach."""
    _, prefill, decode = apart

    report = examine(capsys, stack, prefill, decode)

    assert report["findings"] == []
    assert report["pairs"][0]["mbit_s"] > 0


def test_a_throttled_link_is_named(
    apart: tuple[Network, Server, Server], stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the machine does, the link lets no more through."""
    network, prefill, decode = apart
    network.throttle(SLOW_MBIT_S)
    try:
        report = examine(capsys, stack, prefill, decode, "--min-mbit-s", str(WANTED_MBIT_S), *PATIENT[2:])
    finally:
        network.throttle(0)

    assert codes(report) == {"slow-link"}
    assert report["warnings"] == 1


def test_an_unreachable_data_port_is_named(
    apart: tuple[Network, Server, Server], stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """A firewall lets control messages through, and HTTP, and no KV."""
    if which("nft") is None:
        pytest.skip("nft is missing")
    network, prefill, decode = apart
    nft = ["ip", "netns", "exec", network.prefill, "nft"]
    subprocess.run([*nft, "-f", "-"], input=NO_DATA, text=True, check=True)
    try:
        report = examine(capsys, stack, prefill, decode)
    finally:
        subprocess.run([*nft, "delete", "table", "ip", "baton_doctor"], check=True)

    assert codes(report) == {"data-unreachable"}


def test_an_advertised_loopback_address_is_named(
    trio: Trio, apart: tuple[Network, Server, Server], stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """It serves the proxy on its own machine well, and tells a decode node on another one to call itself."""
    _, _, decode = apart

    report = examine(capsys, stack, trio.prefill, decode)

    assert codes(report) == {"loopback-advertised"}
