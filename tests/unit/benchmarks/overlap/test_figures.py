import json
from typing import Any

import pytest

from benchmarks.overlap.figures import (
    PLAIN,
    RAW,
    UPSTREAM,
    Cell,
    Figures,
    Kv,
    Measured,
    Sample,
    bytes_are_right,
    figures,
    handovers,
    hidden_share,
    ideal_s,
    table,
    to_plain,
)

KV_BYTES = 14_680_064


def samples(*seconds: float, prefill_s: float | None = None) -> list[Sample]:
    """Samples that sent everything."""
    sent = {"wire_bytes": KV_BYTES + 500_000, "kv_bytes": KV_BYTES}
    return [Sample(seconds=value, prefill_s=prefill_s, **sent) for value in seconds]


def test_each_layer_of_each_chunk_is_one_handover_and_whole_blocks_travel() -> None:
    """The last chunk counts, be it ever so short; the last block is sent even if it is partly filled."""
    assert [handovers(8, tokens, 2048) for tokens in (600, 2048, 3500)] == [8, 8, 16]
    assert [Kv(32, 128, 10).bytes_of(tokens) for tokens in (1, 128, 129, 3500)] == [10, 10, 20, 280]


@pytest.mark.parametrize(("plain_s", "raw_s", "expected"), [(0.448, 0.615, 0.643), (0.477, 0.123, 0.485)])
def test_the_ideal_is_the_longer_and_one_part_of_the_shorter(plain_s: float, raw_s: float, expected: float) -> None:
    """The prototype's rows of 3,500 tokens, at 200 Mbit/s and at 1 Gbit/s."""
    assert ideal_s(plain_s, raw_s, 16) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("ttft_s", "expected"), [(1.0, 0.0), (0.6, 1.0), (0.8, 0.5)])
def test_the_hidden_share_runs_from_one_after_the_other_to_side_by_side(ttft_s: float, expected: float) -> None:
    """C + X hides nothing; max(C, X) hides the shorter one whole. On an unthrottled link there is nothing to be hidden."""
    assert hidden_share(0.4, 0.6, ttft_s) == pytest.approx(expected)
    assert hidden_share(0.4, 0.005, 0.45) is None


def test_medians_are_compared_not_means() -> None:
    """One slow sample of three changes no ratio. P's own time is compared with the plain server's."""
    taken = {
        PLAIN: samples(0.45, 0.45, 9.0, prefill_s=0.40),
        RAW: samples(0.6, 0.6, 9.0),
        UPSTREAM: samples(1.0, 1.0, 9.0),
        "event": samples(0.65, 0.65, 9.0, prefill_s=0.42),
    }
    rounds: dict[str, Any] = {"expected_bytes": KV_BYTES, "other_cores": 0.02, "noisy_rounds": 0}
    found = figures(Measured(cell=Cell(200, 3500, 2048), layers=8, samples=taken, **rounds))

    event = next(line for line in found.lines if line.subject == "event")
    assert (found.plain_s, found.raw_s, event.ttft_s) == (0.45, 0.6, 0.65)
    assert event.to_upstream == pytest.approx(0.65)
    assert event.to_ideal == pytest.approx(0.65 / (ideal_s(0.45, 0.6, 16) + 0.010))
    assert event.hidden_share == pytest.approx(0.4 / 0.45)
    assert (event.fastest_s, event.slowest_s) == (0.65, 9.0)
    assert event.prefill_ratio == pytest.approx(1.05)


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


def cell(*, noisy_rounds: int = 0, wire_bytes: int = 2000, **commit: float) -> Figures:
    """One computed cell of two variants."""
    taken = {
        PLAIN: [Sample(seconds=0.037)],
        RAW: [Sample(seconds=0.110, wire_bytes=2000)],
        UPSTREAM: [Sample(seconds=0.149, wire_bytes=2000)],
        "event": [Sample(seconds=0.116, wire_bytes=wire_bytes, kv_bytes=1000, **commit)],
    }
    failures = ("event: answered 500 without a token",)
    rounds: dict[str, Any] = {"other_cores": 0.03, "noisy_rounds": noisy_rounds, "failures": failures}
    return figures(Measured(cell=Cell(200, 600, 2048), layers=8, expected_bytes=1000, samples=taken, **rounds))


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, " 200M 600 2048 1 37.0 110.0 114.6 event 116.0 116.0–116.0 0.931 0.779 84% all – – 0.03 "),
        ({"wire_bytes": 10}, " MISSING "),  # such a time means nothing
        ({"noisy_rounds": 2}, " 0.03 (2 noisy) "),  # others used the CPU
        ({"after_commit_s": 0.0065}, " 6.5 "),
    ],
)
def test_what_a_reader_must_know_of_a_figure_stands_beside_it(changes: dict[str, Any], shown: str) -> None:
    """C, X, ideal, time, both ratios, hidden share, in milliseconds and shares; one that is missing is a dash, never a gap.

    All in the subject's own line; a round that was dropped is told below, with its reason.
    """
    text = table([cell(**changes)])

    row = next(line for line in text.splitlines() if " event " in line)
    assert shown in f" {' '.join(row.split())} "
    assert "dropped: event: answered 500 without a token" in text


def test_the_json_form_keeps_every_sample() -> None:
    """Figures can be computed again from the file."""
    (found,) = json.loads(json.dumps(to_plain([cell()])))

    assert found["cell"] == {"link_mbit_s": 200, "tokens": 600, "chunk_tokens": 2048}
    assert found["measured"]["samples"]["event"][0]["seconds"] == 0.116
    assert found["lines"][1]["subject"] == "event"
