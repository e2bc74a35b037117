import argparse
import os
import random
from collections.abc import Iterator

import pytest

from baton.deploy.forkserver import ForkServer
from baton.kv_connector.layout.copy_plan import plan_layers
from benchmarks.microbench.__main__ import measure, parser
from benchmarks.microbench.children import Children, PartError
from benchmarks.microbench.figures import Figure, Target, from_plain, line, number, to_plain
from benchmarks.microbench.planner import contiguous, in_runs
from benchmarks.microbench.rank import KvShape, PlayedTransfer
from tests.unit.benchmarks.microbench_parts import FIGURES

PARTS = "tests.unit.benchmarks.microbench_parts"


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Children of a fork server that has imported what the parts below do."""
    with ForkServer(prepare=f"{PARTS}:prepare") as server:
        yield Children(server, tmp_path_factory.mktemp("children"))


def figure(value: float, target: Target | None = None) -> Figure:
    """A figure that nobody measured."""
    return Figure(name="n", value=value, unit="µs", target=target, details={"median": 1.5})


@pytest.mark.parametrize(
    ("target", "met", "missed"), [(Target("at most", 30.0), 30.0, 30.1), (Target("at least", 0.9), 0.9, 0.89)]
)
def test_a_line_says_whether_the_target_was_met(target: Target, met: float, missed: float) -> None:
    """The bound itself is enough."""
    assert " met" in line(figure(met, target))
    assert "MISSED" in line(figure(missed, target))


def test_a_figure_without_a_target_is_only_shown() -> None:
    """With its unit and what helps to read it."""
    shown = line(figure(12.3))

    assert [word for word in ("n", "12.3", "µs", "median 1.50") if word not in shown] == []
    assert "met" not in shown
    assert "MISSED" not in shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0123, "0.01"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234"), (-30.04, "-30.0")]
)
def test_numbers_have_about_three_digits(value: float, shown: str) -> None:
    """And no exponent."""
    assert number(value) == shown


def test_a_figure_survives_the_way_to_the_parent() -> None:
    """A part's process hands its figures on as JSON."""
    for made in (figure(1.0), figure(40.0, Target("at most", 30.0))):
        assert from_plain(to_plain(made)) == made


@pytest.mark.parametrize("run", [1, 8])
def test_block_tables_have_the_runs_that_their_name_says(run: int) -> None:
    """No run joins another by chance, and no block is named twice."""
    shape = KvShape(layers=1, blocks=16 * run, block_bytes=64)
    regions = list(zip(shape.regions(0), shape.regions(1 << 30), strict=True))
    for seed in range(50):
        tables = in_runs(8 * run, run, random.Random(seed))

        assert len(plan_layers(regions, *tables)) == 8
        assert [len(set(table)) for table in tables] == [8 * run] * 2
    assert len(plan_layers(regions, *contiguous(8))) == 1


def test_the_layers_of_a_cache_touch_and_do_not_overlap() -> None:
    """Together they are the memory that is registered."""
    shape = KvShape(layers=3, blocks=4, block_bytes=8)
    regions = shape.regions(100)

    assert [(region.base_addr, region.end_addr) for region in regions] == [(100, 132), (132, 164), (164, 196)]
    assert shape.total_bytes == 96


def test_a_played_transfer_speaks_as_the_scheduler_does() -> None:
    """New blocks of a step, and how many of the prompt are complete after it."""
    transfer = PlayedTransfer("a", range(10, 14), range(20, 24))

    assert transfer.prompt.blocks == 4
    assert transfer.progress(1, 3) == ("a", [[11, 12]], 3)


def test_figures_come_from_a_process_of_their_own(children: Children) -> None:
    """In its order, with the arguments it was given."""
    figures = list(children.figures(f"{PARTS}:measure", {"values": [1.0, 2.0]}))

    assert [made.value for made in figures] == [1.0, 2.0]
    assert figures[0].details["pid"] != os.getpid()


def test_a_part_that_fails_says_why(children: Children) -> None:
    """The figures before it count; its log's end is in the message."""
    figures = children.figures(f"{PARTS}:fail", {})

    assert next(figures) == FIGURES[0]
    with pytest.raises(PartError, match="broken on purpose"):
        next(figures)


def test_a_part_that_never_ends_is_ended(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits without a bound."""
    monkeypatch.setattr("benchmarks.microbench.children.PART_TIMEOUT_S", 0.3)

    with pytest.raises(PartError, match="took too long"):
        list(children.figures(f"{PARTS}:hang", {}))


def test_the_throttled_part_is_skipped_without_root(
    children: Children, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line; the other parts run."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    arguments: argparse.Namespace = parser().parse_args(["--parts", "sender-cpu", "--patience-s", "0"])

    parts = list(measure(arguments, children))

    assert [(part["part"], part["figures"]) for part in parts] == [("sender-cpu", [])]
    assert "skipped: network namespaces can be made by root alone" in capsys.readouterr().out
