from typing import Any

import pytest

from benchmarks.bench import report
from benchmarks.bench.interference import Felt
from benchmarks.bench.report import BATON, Felts, first_tokens, streams
from benchmarks.overlap.figures import NIXL, PLAIN, TWO, UPSTREAM, Cell, Measured, Sample

KV_BYTES = 1000


def test_ratios_are_of_the_same_round() -> None:
    """A round in which the machine was slow is slow for both and changes no ratio. Who sent a byte too few is marked."""
    sent = {
        PLAIN: (0.1, 0),
        TWO: (0.1, 0),
        UPSTREAM: (0.2, KV_BYTES),
        NIXL: (0.3, KV_BYTES - 1),
        BATON: (0.12, KV_BYTES),
    }
    taken = {
        name: [Sample(seconds=usual_s * slow, wire_bytes=sent_bytes) for slow in (1, 2, 1)]
        for name, (usual_s, sent_bytes) in sent.items()
    }
    quiet: dict[str, Any] = {"other_cores": 0.0, "noisy_rounds": 0}
    cell = first_tokens(Measured(cell=Cell(200, 600, 2048), layers=8, expected_bytes=KV_BYTES, samples=taken, **quiet))

    found = cell.ratios[UPSTREAM]
    assert found.least == found.median == found.most == pytest.approx(0.6)
    assert cell.missing_bytes == [NIXL]
    assert "300*" in report.first_token_table([cell])


def test_what_streams_felt_is_compared_with_what_they_felt_elsewhere() -> None:
    """P99 of the gaps with long prompts, ours by theirs; Baton's own line has none."""
    plain = Felt(quiet_itl_s=[0.01] * 100, busy_itl_s=[0.01] * 95 + [0.5] * 5, long_ttft_s=[0.6])
    ours = Felt(quiet_itl_s=[0.01] * 100, busy_itl_s=[0.01] * 95 + [0.02] * 5, long_ttft_s=[0.7])
    felts = Felts(link_mbit_s=0, rounds={TWO: [plain, plain], BATON: [ours, ours]})
    lines = {line.subject: line for line in streams(felts)}

    assert lines[TWO].busy_p99_s == pytest.approx(0.5)
    assert lines[TWO].quiet_p99_s == pytest.approx(0.01)
    assert lines[TWO].p99_ratio is not None
    assert lines[TWO].p99_ratio.median == pytest.approx(0.04)
    assert lines[BATON].p99_ratio is None
    assert lines[TWO].tokens_share == pytest.approx(0.01 / 0.0345)
