import json
from dataclasses import replace
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
    bytes_are_right,
    expected_kv_bytes,
    figures,
    handovers,
    hidden_share,
    ideal_s,
    link_name,
    table,
    to_plain,
)

CELL = Cell(200, 3500, 2048)
KV_BYTES = 14_680_064


def samples(*seconds: float, **more: float) -> list[Sample]:
    """Samples that sent everything."""
    whole = Sample(seconds=0.0, wire_bytes=KV_BYTES + 500_000, kv_bytes=KV_BYTES, **more)
    return [replace(whole, seconds=value) for value in seconds]


def computed(**by_subject: list[Sample]) -> Figures:
    """Figures of one cell from samples by subject."""
    measured = Measured(
        cell=CELL, layers=8, expected_bytes=KV_BYTES, samples=by_subject, other_cores=0.02, noisy_rounds=0
    )
    return figures(measured)


@pytest.mark.parametrize(("tokens", "chunk", "expected"), [(600, 2048, 8), (3500, 2048, 16), (3500, 512, 56)])
def test_each_layer_of_each_chunk_is_one_handover(tokens: int, chunk: int, expected: int) -> None:
    """The last chunk counts, be it ever so short."""
    assert handovers(8, tokens, chunk) == expected


@pytest.mark.parametrize(("plain_s", "raw_s", "expected"), [(0.448, 0.615, 0.643), (0.477, 0.123, 0.485)])
def test_the_ideal_is_the_longer_and_one_part_of_the_shorter(plain_s: float, raw_s: float, expected: float) -> None:
    """The prototype's rows of 3,500 tokens, at 200 Mbit/s and at 1 Gbit/s."""
    assert ideal_s(plain_s, raw_s, 16) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("ttft_s", "expected"), [(1.0, 0.0), (0.6, 1.0), (0.8, 0.5)])
def test_the_hidden_share_runs_from_one_after_the_other_to_side_by_side(ttft_s: float, expected: float) -> None:
    """C + X hides nothing; max(C, X) hides the shorter one whole."""
    assert hidden_share(0.4, 0.6, ttft_s) == pytest.approx(expected)


def test_nothing_can_be_hidden_where_there_is_nothing() -> None:
    """On an unthrottled link a share would be a thousand percent of the fixed costs."""
    assert hidden_share(0.4, 0.0, 0.4) is None
    assert hidden_share(0.4, 0.005, 0.45) is None


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (128, 1), (129, 2), (3500, 28)])
def test_whole_blocks_travel(tokens: int, blocks: int) -> None:
    """The last block is sent even if it is partly filled."""
    assert expected_kv_bytes(tokens, 128, 524_288) == blocks * 524_288


def test_medians_are_compared_not_means() -> None:
    """One slow sample of three changes no ratio."""
    found = computed(
        **{
            PLAIN: samples(0.45, 0.45, 9.0),
            RAW: samples(0.6, 0.6, 9.0),
            UPSTREAM: samples(1.0, 1.0, 9.0),
            "event": samples(0.65, 0.65, 9.0),
        }
    )

    event = next(line for line in found.lines if line.subject == "event")
    assert (found.plain_s, found.raw_s, event.ttft_s) == (0.45, 0.6, 0.65)
    assert event.to_upstream == pytest.approx(0.65)
    assert event.to_ideal == pytest.approx(0.65 / (ideal_s(0.45, 0.6, 16) + 0.010))
    assert event.hidden_share == pytest.approx(0.4 / 0.45)
    assert (event.fastest_s, event.slowest_s) == (0.65, 9.0)


def test_prefill_with_pushes_is_compared_with_the_plain_servers() -> None:
    """P's own time, not the client's."""
    found = computed(**{PLAIN: samples(0.5, prefill_s=0.40), "event": samples(0.7, prefill_s=0.42)})

    assert found.lines[0].prefill_ratio == pytest.approx(1.05)


@pytest.mark.parametrize(
    ("wire_bytes", "kv_bytes", "right"),
    [
        (KV_BYTES + 9, KV_BYTES, True),
        (KV_BYTES + 9, None, True),  # vLLM's connector keeps no count of its own
        (KV_BYTES // 2, None, False),
        (KV_BYTES // 2, KV_BYTES, False),  # a count that the link contradicts
        (KV_BYTES + 9, KV_BYTES // 2, False),
    ],
)
def test_bug_pushing_only_the_last_chunk_is_no_speed_up(wire_bytes: int, kv_bytes: int | None, right: bool) -> None:
    """All bytes must have been counted, by the sender where it counts and by the link always."""
    assert bytes_are_right(Sample(seconds=0.1, wire_bytes=wire_bytes, kv_bytes=kv_bytes), KV_BYTES) is right


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
