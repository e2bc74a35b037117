"""From records and counters to a table, and to JSON with every request. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from baton.loadtest.measures.record import Record
from baton.loadtest.measures.serving import errors_by_kind, serving
from baton.loadtest.report.tables import Table, milliseconds
from baton.loadtest.result import ClientCost
from benchmarks.goodput.idle import TPOT_TIMES, TTFT_TIMES, Idle, meets_slos

_PLANS, _RATIO_BUCKETS = "baton_decisions_total", "baton_prefill_prediction_ratio_bucket"


class ProxyCounts(msgspec.Struct, frozen=True):
    """What a proxy has counted."""

    plans: Counter[str]  # by path and reason
    ratios: Counter[float]  # prompts' first tokens, seen ÷ predicted time: how many were at most so much

    def since(self, before: "ProxyCounts") -> "ProxyCounts":
        return ProxyCounts(self.plans - before.plans, self.ratios - before.ratios)

    def median_ratio(self) -> float | None:
        """Return the median by the buckets, as Prometheus estimates it; None: nothing was predicted."""
        low = below = 0.0
        half = max(self.ratios.values(), default=0) / 2
        for high, count in sorted(self.ratios.items()):
            if count >= half > 0:
                return low if high == float("inf") else low + (high - low) * (half - below) / (count - below)
            low, below = high, float(count)
        return None


def parse_counts(metrics: str) -> ProxyCounts:
    plans, ratios = Counter[str](), Counter[float]()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == _PLANS:
                plans[f"{sample.labels['path']} {sample.labels['reason']}".strip()] += int(sample.value)
            elif sample.name == _RATIO_BUCKETS:
                ratios[float(sample.labels["le"])] += int(sample.value)
    return ProxyCounts(plans, ratios)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round of a setup under a mix."""

    mix: str
    setup: str
    seconds: float  # in which conversations began
    requests: int  # that were to be sent
    records: Sequence[Record]  # a request that was not sent, or not over at the end, has none
    counts: ProxyCounts
    client: ClientCost
    other_cores: float  # that processes of others used
    throttled: Sequence[float]  # by node, share of periods in which it had used up its quota


def goodput_table(found: Sequence[Measured], idle: Idle) -> Table:
    """Return a line for each mix and setup, over all its rounds."""
    cells: dict[tuple[str, str], list[Measured]] = {}
    for one in found:
        cells.setdefault((one.mix, one.setup), []).append(one)
    headings = (
        *("mix", "setup", "requests", "failed", "goodput", "requests/s in SLOs", "P50 TTFT (ms)", "P99 TTFT (ms)"),
        *("P99 ITL (ms)", "first token seen ÷ predicted", "cores others used", "plans"),
    )
    note = f"SLOs: TTFT of {TTFT_TIMES:g} times, TPOT of {TPOT_TIMES:g} times that of an idle plain server."
    return Table("Goodput", headings, [_line(*name, rounds, idle) for name, rounds in cells.items()], note)


def _line(mix: str, setup: str, rounds: Sequence[Measured], idle: Idle) -> tuple[str, ...]:
    records = [record for one in rounds for record in one.records]
    seconds, requests = sum(one.seconds for one in rounds), sum(one.requests for one in rounds)
    good = sum(meets_slos(record, idle) for record in records)
    served = serving(records, seconds, {})
    plans, ratios = Counter[str](), Counter[float]()
    for one in rounds:
        plans, ratios = plans + one.counts.plans, ratios + one.counts.ratios
    ratio = ProxyCounts(plans, ratios).median_ratio()
    return (
        *(mix, setup, str(requests), str(requests - served.completed)),
        *(f"{good / requests:.1%}", f"{good / seconds:.2f}"),
        *(milliseconds(served.ttft.median, served.ttft), milliseconds(served.ttft.p99, served.ttft)),
        *(milliseconds(served.itl.p99, served.itl), "–" if ratio is None else f"{ratio:.2f}"),
        f"{max(one.other_cores for one in rounds):.2f}",
        ", ".join(f"{count / plans.total():.0%} {name}" for name, count in plans.most_common()),
    )


def as_plain(found: Sequence[Measured], idle: Idle, about: dict[str, Any]) -> dict[str, Any]:
    rounds = []
    for one in found:
        told = {name: getattr(one, name) for name in one.__slots__ if name not in ("records", "counts", "client")}
        told["client"] = msgspec.to_builtins(one.client)
        told |= {"plans": one.counts.plans, "prediction_ratio_median": one.counts.median_ratio()}
        told |= {"good": sum(meets_slos(record, idle) for record in one.records)}
        told |= {"errors": errors_by_kind(one.records), "records": msgspec.to_builtins(one.records)}
        rounds.append(told)
    points = [point._asdict() for point in idle.points]
    return {"about": about, "idle": {"points": points, "token_s": idle.token_s}, "rounds": rounds}
