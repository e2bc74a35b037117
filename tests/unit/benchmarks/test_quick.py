from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness import BenchError, Spread
from benchmarks.quick import __main__ as command
from benchmarks.quick.connector import calibration
from benchmarks.quick.ratios import HIGHER, LOWER, NOT_MEASURED, Line, Sample

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


def test_the_loop_always_does_the_same() -> None:
    """What it computes is fixed: a change here would shift every ratio."""
    assert calibration() == calibration() == 798508552768


def test_a_baseline_is_shown_the_next_time_and_never_written_of_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures are paired by name. What cannot be measured is an error; the other parts are measured and shown."""
    path = tmp_path / "quick.json"
    argv = ["--baseline", str(path), "--parts"]
    monkeypatch.setattr(command, "PARTS", {"three": three, "broken": broken})

    assert command.main([*argv, "broken", "three", "--write-baseline"]) == 1
    said = capsys.readouterr()
    assert "broken could not be measured: it did not come up" in said.err
    assert "a ÷ b" in said.out
    assert not path.exists()

    monkeypatch.setattr(command, "PARTS", {"three": three})
    assert command.main([*argv, "three", "--write-baseline"]) == 0
    assert "baseline: none" in capsys.readouterr().out
    assert command.main([*argv, "three"]) == 0
    assert "a ÷ b   1.100 (1.000–1.200)  1.100 (1.000–1.200)            1.00" in capsys.readouterr().out
