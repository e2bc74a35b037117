"""The GPU kit on the simulated device: each script passes with what the product has, and fails with a fault planted in it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.worker_side.digest import RegionDigests
from baton.kv_connector.worker_side.sync import ModelStream, make_layer_sync
from baton.model_runner.watchdog import Ages
from tests.gpu import e9_watchdog, rank
from tests.gpu.harness import SCRIPTS, Scale, find_script, run_script
from tests.gpu.late import LateAccelerator, late
from tests.support.late_device import LateEvent, LateStream
from tests.support.memory_engine import MemoryReceiver

ROOT = Path(__file__).parents[3]
NOT_THERE = ("vllm", "pydantic", "aiohttp", "fastapi", "httpx", "uvicorn", "uvloop", "prometheus_client", "zmq")


def dry_run(name: str) -> dict[str, Any]:
    """Run a script in this process, as small as possible; return its result as it is read from the file."""
    script = find_script(name)
    with late(*getattr(script, "DRIVEN", ()), virtual=getattr(script, "VIRTUAL", True)) as device:
        result = run_script(name, device, Scale(full=False, processes=False))
    return json.loads(json.dumps(result))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_passes_with_what_the_product_has(name: str) -> None:
    """Its figures are there under the names that were expected, and the result says what ran."""
    result = dry_run(name)

    assert (result["missed"], result["passed"]) == ([], True), result
    assert set(result["expected"]) <= set(result["seen"])
    assert result.keys() == {"name", "title", "expected", "seen", "missed", "passed", "notes", "seconds", "versions"}
    assert result["versions"]["device"] == "simulated"


NUMBERS: Final[Iterator[bytes]] = (bytes([number]) for number in range(256))
UNRECORDED: Final = ModelStream(device_type="cuda", record=lambda: None, synchronize=lambda: None)
# What is planted → by what: the thing, its attribute, what stands in its place.
FAULTS: Final[dict[str, list[tuple[object, str, object]]]] = {
    "layers count as written that have only been launched": [(rank, "record_on", lambda _: UNRECORDED)],
    "a pass is handed over at once": [
        (rank, "make_layer_sync", lambda _, *rest: make_layer_sync("forward", *rest)),
    ],
    "all is on the default stream": [(LateAccelerator, "stream", lambda device: device.legacy)],
    "a receiving engine lives on when it has been closed": [(MemoryReceiver, "close", lambda _: None)],
    "a stream does not wait for the copy": [(LateStream, "wait_event", lambda *_: None)],
    "a wait for an event returns at once": [(LateEvent, "synchronize", lambda _: None)],
    "a preempted prompt goes on": [(FanOut, "void", lambda *_: None)],
    "no call is ever overdue": [(Ages, "find_overdue", lambda *_: None), (e9_watchdog, "HERE_S", 0.3)],
    "no two digests agree": [(RegionDigests, "__call__", lambda *_: next(NUMBERS))],
}


@pytest.mark.parametrize(
    ("name", "fault", "missed"),
    [
        (
            "E1",
            "layers count as written that have only been launched",
            {"submitted before its own event", "elements that differ on D"},
        ),
        ("E1", "a pass is handed over at once", {"submitted before the last event, of 32"}),
        ("E2", "all is on the default stream", {"own stream: median piece to host, ms"}),
        ("E3", "a receiving engine lives on when it has been closed", {"late bytes"}),
        ("E4", "a stream does not wait for the copy", {"stale reads with the event, copy engine busy"}),
        ("E5", "a wait for an event returns at once", {"steps with wrong tokens"}),
        ("E6", "a wait for an event returns at once", {"steps with wrong tokens"}),
        ("E7", "a pass is handed over at once", {"event: (T - last layer) by max(C, X), worst"}),
        ("E8", "a preempted prompt goes on", {"preempted prompts that committed"}),
        ("E9", "no call is ever overdue", {"hang: ended by the watchdog"}),
        ("E10", "no two digests agree", {"layouts that differ"}),
    ],
)
def test_a_script_fails_with_a_fault_planted(
    name: str, fault: str, missed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that cannot fail shows nothing."""
    for thing, attribute, other in FAULTS[fault]:
        monkeypatch.setattr(thing, attribute, other)

    result = dry_run(name)

    assert not result["passed"]
    assert missed <= set(result["missed"])


def test_nothing_is_imported_that_the_machine_lacks() -> None:
    """No vLLM, and of the node's own libraries msgspec alone."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({NOT_THERE}))\n"
        "from tests.gpu import __main__, late\n"
        "from tests.gpu.harness import SCRIPTS, find_script\n"
        "for name in SCRIPTS: find_script(name)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )

    assert done.returncode == 0, done.stderr


def test_the_page_says_what_was_expected() -> None:
    """Every expectation of the scripts is in its table, and none that they have dropped."""
    page = (ROOT / "docs/benchmarks/gpu.md").read_text()
    expected = {
        (name, each.figure, f"{each.compare} {each.value:g}", each.why)
        for name in SCRIPTS
        for each in find_script(name).EXPECTED
    }

    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines() if line.startswith("| E")]

    assert {tuple(row[1:5]) for row in rows} == expected
