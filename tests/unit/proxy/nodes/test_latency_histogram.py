import msgspec

from baton.proxy.admin.node_metrics import times
from baton.proxy.nodes.latency_histogram import NodeTimes, Tally, tallied, tally
from baton.proxy.telemetry.metrics import render

OF = 'role="decode",url="http://d"'
GAPS = "baton_inter_token_latency_seconds"


def seen(*gaps_s: float, leg_s: float | None = None) -> Tally:
    """What one worker has timed of a decode node, as it arrives at another one."""
    timed = NodeTimes()
    for gap_s in gaps_s:
        timed.gaps.observe(gap_s)
    if leg_s is not None:
        timed.ended.observe(leg_s)
    return msgspec.json.decode(msgspec.json.encode(tally("decode", "http://d", timed)), type=Tally)


def rendered(*tallies: Tally) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in render(times(tallies)).decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, _, value in lines}


def test_a_histogram_reads_as_prometheus_wants_it() -> None:
    """Buckets count what is below them too, a bound belongs to its bucket, and what is beyond all of them is in +Inf."""
    found = rendered(seen(0.0025, 0.003, 0.5, 99.0))

    assert {name.partition("_bucket")[0] for name in found if "_bucket" in name} == {
        GAPS
    }  # what was timed, nothing else
    buckets = [found[f'{GAPS}_bucket{{le="{le}",{OF}}}'] for le in ("0.001", "0.0025", "0.005", "0.5", "5.0", "+Inf")]
    assert buckets == [0, 1, 2, 3, 3, 4]
    assert (found[f"{GAPS}_count{{{OF}}}"], found[f"{GAPS}_sum{{{OF}}}"]) == (4, 99.5055)


def test_what_several_workers_timed_adds_up() -> None:
    """Node by node and bucket by bucket, whichever worker has seen which."""
    other = Tally("prefill", "http://d", {"answered": [0] * 12 + [2]}, {"answered": 400.0})

    found = rendered(*tallied([[seen(0.004)], [seen(0.5, leg_s=1.0), other], [seen(99.0)], [seen()]]))
    assert rendered(seen()) == {}

    assert [found[f'{GAPS}_bucket{{le="{le}",{OF}}}'] for le in ("0.0025", "0.005", "0.5", "+Inf")] == [0, 1, 2, 3]
    assert (found[f"{GAPS}_count{{{OF}}}"], found[f"{GAPS}_sum{{{OF}}}"]) == (3, 99.504)
    assert {name: value for name, value in found.items() if name.startswith("baton_leg_seconds_count")} == {
        'baton_leg_seconds_count{role="decode",until="ended",url="http://d"}': 1,
        'baton_leg_seconds_count{role="prefill",until="answered",url="http://d"}': 2,
    }


def test_a_tally_is_of_its_moment() -> None:
    timed = NodeTimes()
    timed.gaps.observe(0.1)
    before = tally("decode", "http://d", timed)
    timed.gaps.observe(0.1)

    assert (sum(before.counts["gaps"]), before.sums_s["gaps"]) == (1, 0.1)
