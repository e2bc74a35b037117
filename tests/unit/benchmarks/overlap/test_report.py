import json
from typing import Any

import pytest

from benchmarks.overlap.figures import (
    HEADINGS,
    PLAIN,
    RAW,
    UPSTREAM,
    Cell,
    Figures,
    Measured,
    Sample,
    figures,
    link_name,
    table,
    to_plain,
)


def cell(*, noisy_rounds: int = 0, wire_bytes: int = 2000, commit: dict[str, float] | None = None) -> Figures:
    """One computed cell of two variants."""
    event = Sample(seconds=0.116, wire_bytes=wire_bytes, kv_bytes=1000, **(commit or {}))
    return figures(
        Measured(
            cell=Cell(200, 600, 2048),
            layers=8,
            expected_bytes=1000,
            samples={
                PLAIN: [Sample(seconds=0.037)],
                RAW: [Sample(seconds=0.110, wire_bytes=2000)],
                UPSTREAM: [Sample(seconds=0.149, wire_bytes=2000)],
                "event": [event],
            },
            other_cores=0.03,
            noisy_rounds=noisy_rounds,
            failures=("event: answered 500 without a token",),
        )
    )


def row_of(text: str, subject: str) -> str:
    """The table's line of a subject."""
    return next(line for line in text.splitlines() if f" {subject} " in line)


def test_a_line_holds_the_figures_that_acceptance_asks_for() -> None:
    """C, X, ideal, time, both ratios, hidden share, in milliseconds and shares."""
    row = row_of(table([cell()]), "event")

    assert " ".join(row.split()) == (
        "200M 600 2048 1 37.0 110.0 114.6 event 116.0 116.0–116.0 0.931 0.779 84% all – – 0.03"
    )


def test_columns_are_as_many_as_headings() -> None:
    """A figure that is missing is a dash, never a gap."""
    lines = [line for line in table([cell()]).splitlines() if not line.startswith("dropped")]

    assert len(lines) == 3
    assert {len(line) for line in lines} == {len(lines[0])}
    assert lines[0].split() == [word for heading in HEADINGS for word in heading.split()]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"wire_bytes": 10}, "MISSING"),  # such a time means nothing
        ({"noisy_rounds": 2}, "0.03 (2 noisy)"),  # others used the CPU
        ({"commit": {"after_commit_s": 0.0065}}, " 6.5 "),
    ],
)
def test_what_a_reader_must_know_of_a_figure_stands_beside_it(changes: dict[str, Any], shown: str) -> None:
    """In the subject's own line; a round that was dropped is told below, with its reason."""
    text = table([cell(**changes)])

    assert shown in row_of(text, "event")
    assert "dropped: event: answered 500 without a token" in text


def test_links_are_named_as_people_do() -> None:
    """0 is no limit."""
    assert [link_name(mbit) for mbit in (0, 200, 1000, 2500)] == ["none", "200M", "1G", "2500M"]


def test_the_json_form_keeps_every_sample() -> None:
    """Figures can be computed again from the file."""
    (found,) = json.loads(json.dumps(to_plain([cell()])))

    assert found["cell"] == {"link_mbit_s": 200, "tokens": 600, "chunk_tokens": 2048}
    assert found["measured"]["samples"]["event"][0]["seconds"] == 0.116
    assert found["lines"][1]["subject"] == "event"
