"""From records and a proxy's metrics to a table. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import mean, median

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from baton.loadtest.measures.record import Record
from baton.loadtest.measures.serving import serving
from baton.loadtest.report.tables import Table, milliseconds
from benchmarks.goodput.idle import TPOT_TIMES, TTFT_TIMES

_PLANS, _RATIO_BUCKETS = "baton_decisions_total", "baton_prefill_prediction_ratio_bucket"


def count_plans(metrics: bytes) -> tuple[Counter[str], Counter[float]]:
    """Return plans by path and reason, and of all first tokens how many took at most which multiple of the predicted time."""
    plans, ratios = Counter[str](), Counter[float]()
    for family in text_string_to_metric_families(metrics.decode()):
        for sample in family.samples:
            if sample.name == _PLANS:
                plans[f"{sample.labels['path']} {sample.labels['reason']}".strip()] += int(sample.value)
            elif sample.name == _RATIO_BUCKETS:
                ratios[float(sample.labels["le"])] += int(sample.value)
    return plans, ratios


def median_error(buckets: Mapping[float, int]) -> float | None:
    """Return the median of |ratio - 1|, with ratios spread evenly over each bucket; None: half are beyond the last bound, or there are none."""
    bounds = sorted(set(buckets) - {inf})
    counts = [0, *(buckets[bound] for bound in bounds)]
    errors = sorted({0.0, *(abs(bound - 1) for bound in (0.0, *bounds))})
    below, above = (np.interp([1 + sign * error for error in errors], [0.0, *bounds], counts) for sign in (-1, 1))
    half = max(buckets.values(), default=0) / 2
    return float(np.interp(half, above - below, errors)) if 0 < half <= (above - below)[-1] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round of one setup under one mix."""

    mix: str
    link_bit_s: float  # throttle between the nodes; 0: none
    setup: str
    seconds: float  # in which conversations began
    requests: int  # that were to be sent
    good: int  # that met the SLOs
    plans: Mapping[str, int]
    prediction_error: float | None  # of the time to the first token, median, as a share of what was predicted
    other_cores: float  # that processes of others used
    records: Sequence[Record]  # a request that was not sent, or not over at the end, has none


def goodput_table(found: Sequence[Measured]) -> Table:
    """Put all rounds of a setup under a mix into one line."""
    headings = (
        *("mix", "link (Mbit/s)", "setup", "requests", "failed", "goodput", "requests/s in SLOs", "P50 TTFT (ms)"),
        *("P99 TTFT (ms)", "P99 ITL (ms)", "error of predicted TTFT", "cores others used", "plans"),
    )
    note = f"SLOs: TTFT of {TTFT_TIMES:g} times, TPOT of {TPOT_TIMES:g} times that of an idle plain server."
    rounds: dict[tuple[str, float, str], list[Measured]] = {}
    for one in found:
        rounds.setdefault((one.mix, one.link_bit_s, one.setup), []).append(one)
    return Table("Goodput", headings, list(map(_line, rounds.values())), note)


def _line(rounds: Sequence[Measured]) -> tuple[str, ...]:
    one, seconds, requests = rounds[0], sum(each.seconds for each in rounds), sum(each.requests for each in rounds)
    served = serving([record for each in rounds for record in each.records], seconds, {})
    plans, good = sum((Counter(each.plans) for each in rounds), Counter[str]()), sum(each.good for each in rounds)
    goodput = f"{good / requests:.1%}"
    if len(rounds) > 1:
        shares = [100 * each.good / each.requests for each in rounds]
        goodput += f" ({min(shares):.0f}–{max(shares):.0f})"
    errors = [each.prediction_error for each in rounds if each.prediction_error is not None]
    link = f"{one.link_bit_s / 1e6:g}" if one.link_bit_s else "–"
    return (
        *(one.mix, link, one.setup, str(requests), str(requests - served.completed)),
        *(goodput, f"{good / seconds:.2f}"),
        *(milliseconds(served.ttft.median, served.ttft), milliseconds(served.ttft.p99, served.ttft)),
        *(milliseconds(served.itl.p99, served.itl), f"{median(errors):.0%}" if errors else "–"),
        *(
            f"{mean(each.other_cores for each in rounds):.2f}",
            ", ".join(f"{n / plans.total():.0%} {name}" for name, n in plans.most_common()),
        ),
    )
