from typing import Any

import pytest

from benchmarks.overlap.figures import (
    PLAIN,
    RAW,
    UPSTREAM,
    Cell,
    Figures,
    Measured,
    Sample,
    figures,
    table,
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


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"wire_bytes": 10}, "MISSING"),  # such a time means nothing
        ({"noisy_rounds": 2}, "0.03 (2 noisy)"),  # others used the CPU
        ({"commit": {"commit_bound_s": 0.009}}, "≤9.0"),  # exact only where P names COMMIT on the common clock
        ({"commit": {"commit_bound_s": 0.009, "after_commit_s": 0.0065}}, " 6.5 "),
    ],
)
def test_what_a_reader_must_know_of_a_figure_stands_beside_it(changes: dict[str, Any], shown: str) -> None:
    """In the subject's own line; a round that was dropped is told below, with its reason."""
    text = table([cell(**changes)])

    assert shown in row_of(text, "event")
    assert "dropped: event: answered 500 without a token" in text
