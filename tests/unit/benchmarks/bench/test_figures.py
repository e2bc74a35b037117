import pytest

from benchmarks.bench import report
from benchmarks.bench.interference import Felt
from benchmarks.bench.report import BATON, Felts, first_tokens, streams
from benchmarks.overlap.figures import NIXL, PLAIN, TWO, UPSTREAM, Cell, Measured, Sample

KV_BYTES = 1000


def sampled(seconds: list[float], wire_bytes: int = KV_BYTES) -> list[Sample]:
    """Return samples that took so long."""
    return [Sample(seconds=each, wire_bytes=wire_bytes) for each in seconds]


def measured(link: int = 200, tokens: int = 600) -> Measured:
    """Return a cell of three rounds, the second of which was slow for all."""
    return Measured(
        cell=Cell(link, tokens, 2048),
        layers=8,
        expected_bytes=KV_BYTES,
        samples={
            PLAIN: sampled([0.1, 0.2, 0.1], 0),
            TWO: sampled([0.1, 0.2, 0.1], 0),
            UPSTREAM: sampled([0.2, 0.4, 0.2]),
            NIXL: sampled([0.3, 0.6, 0.3], wire_bytes=KV_BYTES - 1),
            BATON: sampled([0.12, 0.24, 0.12]),
        },
        other_cores=0.0,
        noisy_rounds=0,
    )


def felts() -> Felts:
    """Return two rounds: two plain servers stall for 500 ms, Baton for 20."""
    plain = Felt(quiet_itl_s=[0.01] * 100, busy_itl_s=[0.01] * 95 + [0.5] * 5, long_ttft_s=[0.6])
    ours = Felt(quiet_itl_s=[0.01] * 100, busy_itl_s=[0.01] * 95 + [0.02] * 5, long_ttft_s=[0.7])
    return Felts(link_mbit_s=0, rounds={TWO: [plain, plain], BATON: [ours, ours]})


def test_ratios_are_of_the_same_round() -> None:
    """A round in which the machine was slow is slow for both and changes no ratio. Who sent a byte too few is marked."""
    cell = first_tokens(measured())

    found = cell.ratios[UPSTREAM]
    assert found.least == found.median == found.most == pytest.approx(0.6)
    assert cell.missing_bytes == [NIXL]
    assert "300*" in report.first_token_table([cell])


def test_what_streams_felt_is_compared_with_what_they_felt_elsewhere() -> None:
    """P99 of the gaps with long prompts, ours by theirs; Baton's own line has none."""
    lines = {line.subject: line for line in streams(felts())}

    assert lines[TWO].busy_p99_s == pytest.approx(0.5)
    assert lines[TWO].quiet_p99_s == pytest.approx(0.01)
    assert lines[TWO].p99_ratio is not None
    assert lines[TWO].p99_ratio.median == pytest.approx(0.04)
    assert lines[BATON].p99_ratio is None
    assert lines[TWO].tokens_share == pytest.approx(0.01 / 0.0345)
