import gzip
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from baton.loadtest.errors import UsageError
from baton.loadtest.run import build
from baton.loadtest.run.build import parse
from baton.loadtest.run.loops import UNBOUNDED, Closed, Open

TRACE = (
    b'{"timestamp": 1000, "input_length": 600, "output_length": 40, "hash_ids": [0, 1]}\n'
    b'{"timestamp": 3000, "input_length": 512, "output_length": 50, "hash_ids": [0]}\n'
)


def built(*argv: str) -> tuple[list[build.Stage], dict[str, Any]]:
    given = parse(["--url", "http://a:1", *argv])
    dataset = build.source(given)
    return build.stages(given, dataset), build.workload(given, dataset)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(TRACE))
    return str(path)


def test_without_a_rate_users_wait_for_their_answers(tmp_path: Path) -> None:
    """One of them, and an end in requests and in time, or in time alone. A file is asked once, unless more is wanted."""
    (stage,), _ = built()
    (timed,), _ = built("--seconds", "5", "--concurrency", "3")

    assert stage.load == Closed(concurrency=1)
    assert (stage.limits.requests, stage.limits.seconds) == (100, 600.0)
    assert (timed.limits.requests, timed.limits.seconds) == (UNBOUNDED, 5.0)
    path = tmp_path / "p.jsonl"
    path.write_text('"a"\n"b"\n"c"\n')
    assert built("--prompts", str(path))[0][0].limits.requests == 3
    assert built("--prompts", str(path), "--requests", "7")[0][0].limits.requests == 7


def test_a_sweep_has_a_stage_for_each_rate() -> None:
    """Each with its own arrivals and the same cap."""
    stages, _ = built("--rates", "2,4", "--requests", "8", "--concurrency", "5")

    loads = [stage.load for stage in stages]
    assert all(isinstance(load, Open) and load.cap == 5 and len(load.due_s) == 8 for load in loads)
    assert [load.due_s[-1] for load in loads if isinstance(load, Open)] == pytest.approx([4.0, 2.0])
    assert [stage.label for stage in stages] == ["2/s", "4/s"]


def test_a_seed_changes_no_arrivals() -> None:
    """One is drawn for each run: `compare` would judge how lucky the arrivals were."""
    (one,), _ = built("--rate", "3", "--seed", "1")
    (other,), _ = built("--rate", "3", "--seed", "2")

    assert one.load == other.load


CONVERSATIONS = ("--requests", "10", "--dataset", "multi-turn", "--turns", "4")


@pytest.mark.parametrize(
    ("argv", "arrivals", "requests"), [(["--seconds", "10"], 30, UNBOUNDED), (CONVERSATIONS, 3, 10)]
)
def test_an_open_loop_has_as_many_arrivals_as_fit(argv: Sequence[str], arrivals: int, requests: int) -> None:
    """Into its time, not 2 to the 60th; a conversation is one arrival."""
    (stage,), _ = built("--rate", "3", *argv)

    assert isinstance(stage.load, Open)
    assert (len(stage.load.due_s), stage.limits.requests) == (arrivals, requests)


def test_a_trace_brings_its_times_and_lengths(trace: str) -> None:
    """No limit in time, unless one is given."""
    (stage,), work = built("--trace", trace, "--time-scale", "0.5", "--max-input", "550")

    assert stage.load == Open(due_s=[0.0, 1.0], cap=None)
    assert (stage.limits.requests, stage.limits.seconds) == (2, math.inf)
    assert (work["dataset"], work["max_input"]) == ("trace", 550)


def test_descriptions_tell_work_apart_but_not_seeds() -> None:
    """They decide what may be compared."""
    assert built("--seed", "1")[1] == built("--seed", "2")[1]
    assert built("--input-tokens", "9")[1] != built()[1]
    assert built("--dataset", "shared-prefix")[1]["prefix_tokens"] == 512


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.jsonl", b"", "has no requests"),
        ("t.jsonl", b"no json\n", "is no trace in Mooncake's format"),
        ("t.jsonl", b'{"more": ' + b"[" * 100_000, "is no trace in Mooncake's format"),
        ("t.jsonl", None, "No such file"),
        ("t.gz", b"no gzip", "cannot read"),
        ("t.gz", gzip.compress(TRACE, mtime=0)[:10] + b"\xff" * 20, "cannot read"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)

    with pytest.raises(UsageError, match=words) as caught:
        built("--trace", str(tmp_path / name))
    assert name in str(caught.value)
