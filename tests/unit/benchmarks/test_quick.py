import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.kv_connector.layout.copy_plan import plan_layers
from benchmarks.harness import BenchError, Spread
from benchmarks.quick import __main__ as command
from benchmarks.quick.connector import calibration, scattered
from benchmarks.quick.rank import KvShape
from benchmarks.quick.ratios import HIGHER, LOWER, NEW, NOT_MEASURED, Line, Sample, beside

THEN = Spread(1.0, 0.9, 1.1)


def three() -> Iterator[Sample]:
    """A part with one figure in three rounds."""
    yield from (Sample("a ÷ b", ratio) for ratio in (1.2, 1.0, 1.1))


def broken() -> Iterator[Sample]:
    """A part that fails behind its first round."""
    yield Sample("c ÷ d", 2.0)
    raise BenchError("it did not come up")


@pytest.mark.parametrize(
    ("now", "mark"),
    [
        (Spread(1.3, 1.1, 1.4), ""),
        (Spread(1.3, 1.11, 1.4), HIGHER),
        (Spread(0.7, 0.6, 0.89), LOWER),
        (Spread(0.7, 0.6, 0.9), ""),
        (None, NOT_MEASURED),
    ],
)
def test_a_mark_means_that_the_rounds_of_both_do_not_overlap(now: Spread | None, mark: str) -> None:
    """A median that moved within what both showed is no news."""
    assert Line("a", THEN, now).mark == mark


def test_figures_are_paired_by_name() -> None:
    """A new one has no baseline; one that is gone is not forgotten."""
    lines = beside({"old": THEN, "both": THEN}, {"both": Spread(2.0, 1.9, 2.1), "new": THEN})

    assert [(line.name, line.mark, line.change) for line in lines] == [
        ("both", HIGHER, 2.0),
        ("new", NEW, None),
        ("old", NOT_MEASURED, None),
    ]


def test_the_loop_always_does_the_same() -> None:
    """What it computes is fixed: a change here would shift every ratio."""
    assert calibration() == calibration() == 798508552768


def test_scattered_blocks_never_make_one_copy() -> None:
    """No block joins another by chance, and no block is named twice."""
    shape = KvShape(layers=1, blocks=16, block_bytes=64)
    regions = list(zip(shape.regions(0), shape.regions(1 << 30), strict=True))
    for seed in range(50):
        tables = scattered(8, random.Random(seed))

        assert len(plan_layers(regions, *tables)) == 8
        assert [len(set(table)) for table in tables] == [8, 8]


def test_a_baseline_is_written_and_shown_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one every figure is new; a difference is no failure."""
    monkeypatch.setattr(command, "PARTS", {"three": three})
    argv = ["--parts", "three", "--baseline", str(tmp_path / "quick.json")]

    assert command.main([*argv, "--write-baseline"]) == 0
    assert "baseline: none" in capsys.readouterr().out
    assert command.main(argv) == 0

    assert "a ÷ b   1.100 (1.000–1.200)  1.100 (1.000–1.200)            1.00" in capsys.readouterr().out


def test_what_cannot_be_measured_is_an_error_and_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other parts are measured and shown."""
    monkeypatch.setattr(command, "PARTS", {"broken": broken, "three": three})
    path = tmp_path / "quick.json"

    assert command.main(["--parts", "broken", "three", "--baseline", str(path), "--write-baseline"]) == 1

    said = capsys.readouterr()
    assert "broken could not be measured: it did not come up" in said.err
    assert "a ÷ b" in said.out
    assert not path.exists()
