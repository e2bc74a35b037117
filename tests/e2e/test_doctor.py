"""`baton doctor` on a running deployment: nothing to say of a healthy one; each fault in turn: integration/deploy, unit/deploy/doctor."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.deploy.doctor import command
from tests.e2e.conftest import Trio
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e

# No link is too slow, and no machine: what a loaded one measures is not judged here.
PATIENT = ("--min-mbit-s", "0.001", "--max-latency-ms", "60000", "--idle-gap", "0.2")
Report = dict[str, Any]


def doctor(capsys: pytest.CaptureFixture[str], secret_file: Path, *argv: str) -> Report:
    """Run the command; its exit status must agree with its report."""
    status = command.main(["--json", "--secret-file", str(secret_file), *argv])
    report: Report = json.loads(capsys.readouterr().out)
    assert status == (1 if report["wrong"] else 0)
    return report


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
