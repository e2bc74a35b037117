"""A node's snapshots as Prometheus' families. Pure: what is counted where stands in the sides themselves.

`docs/metrics.md` says what each one means; `node/http/metrics.py` brings them onto `/metrics`.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from baton.contracts.kv_transfer import Role
from baton.kv_connector.handoff.session import SessionState
from baton.kv_connector.telemetry.refusals import Refused, added_up

PREFILL_OUTCOMES = ("committed", "revoked", "cancelled", "failed", "dirty")
DECODE_OUTCOMES = ("loaded", "cached", "cancelled")  # and "recomputed", which has a reason each
VERIFIED = {"ok": "verified", "mismatch": "mismatched", "failed": "unverifiable"}  # result → the worker's total


class HistogramValues(msgspec.Struct):
    """A histogram's snapshot, see `Histogram`."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)  # one more than bounds
    sum: float = 0.0


class _Session(msgspec.Struct):
    state: str


class _Worker(msgspec.Struct):
    totals: dict[str, int] = {}
    histograms: dict[str, HistogramValues] = {}
    sessions: list[_Session] = []
    quarantined_blocks: int = 0
    refused: dict[str, int] = {}
    reverse: "_Worker | None" = None  # the other side, of a node that sends and receives


class _Scheduler(msgspec.Struct):
    totals: dict[str, int] = {}
    histograms: dict[str, HistogramValues] = {}
    recomputed_by_reason: dict[str, int] = {}
    reservations: int = 0
    reserved_blocks: int = 0
    refused: dict[str, int] = {}
    reverse: "_Scheduler | None" = None


def families(
    role: Role,
    scheduler: Mapping[str, Any],
    worker: Mapping[str, Any],
    refused: Mapping[str, int] | None = None,
    *,
    both_ways: bool = False,
) -> list[Metric]:
    """Return everything that a node of this role shows; empty snapshots give the same families, without counts.

    A node that sends and receives (`both_ways`, whatever the snapshots hold) shows those of both roles; what both count
    in one family is added up. `refused`: what was turned away before it reached scheduler or worker, by kind.

    Raises `msgspec.ValidationError` for what is no snapshot of this version's connector.
    """
    rank = msgspec.convert(worker, _Worker)
    is_open = SessionState.OPEN.name.lower()
    sessions = GaugeMetricFamily(
        "baton_open_sessions",
        "Pairs of a prefill and a decode rank that may exchange KV, as this node sees it",
        sum(session.state == is_open for session in rank.sessions),
    )
    pool = msgspec.convert(scheduler, _Scheduler)
    own = _of_prefill(rank) if role == "prefill" else _of_decode(pool, rank)
    if both_ways or rank.reverse is not None:
        reverse = rank.reverse or _Worker()
        other = _of_decode(pool.reverse or _Scheduler(), reverse) if role == "prefill" else _of_prefill(reverse)
        own = _together(own, other)
    counts = added_up(pool.refused, rank.refused, refused or {})
    kinds = {kind.value: counts.get(kind, 0) for kind in Refused}
    turned_away = _labelled("baton_refused", "What was turned away, by kind", "kind", kinds)
    return [*own, *_of_pool(pool.totals), sessions, turned_away]


def _together(own: list[Metric], other: list[Metric]) -> list[Metric]:
    known = {family.name: family for family in own}
    for family in other:
        if family.name not in known:
            own.append(family)
            continue
        samples = known[family.name].samples
        places = {(sample.name, *sample.labels.items()): at for at, sample in enumerate(samples)}
        for sample in family.samples:
            at = places.get((sample.name, *sample.labels.items()))
            if at is None:
                samples.append(sample)
            else:
                samples[at] = samples[at]._replace(value=samples[at].value + sample.value)
    return own


def _of_pool(totals: Mapping[str, int]) -> list[Metric]:
    return [
        CounterMetricFamily(
            "baton_idle_checks",
            "Comparisons of block pool, scheduler and ledger before the engine idled",
            totals.get("idle_checks", 0),
        ),
        CounterMetricFamily(
            "baton_integrity_findings",
            "Blocks that were wrong in such a comparison",
            totals.get("integrity_findings", 0),
        ),
    ]


def _of_prefill(worker: _Worker) -> list[Metric]:
    totals = worker.totals
    transfers = _transfers()
    for outcome in PREFILL_OUTCOMES:
        transfers.add_metric([outcome, ""], totals.get(outcome, 0))
    pushes = {"ok": totals.get("pushes", 0), "failed": totals.get("failed_pushes", 0)}
    return [
        transfers,
        _labelled("baton_pushes", "Push calls that have ended, by result", "result", pushes),
        CounterMetricFamily("baton_pushed_bytes", "KV in push calls that returned 0, bytes", totals.get("bytes", 0)),
        _verified({"mismatch": totals.get("mismatched", 0)}),
        histogram_family(
            "baton_exposed_push_seconds",
            "From the last layer computed to COMMIT, per committed transfer",
            worker.histograms.get("exposed_push_s"),
        ),
        histogram_family(
            "baton_hidden_share",
            "Share of the shorter of prefill and transfer that ran behind the other, per committed transfer",
            worker.histograms.get("hidden_share"),
        ),
    ]


def _of_decode(scheduler: _Scheduler, worker: _Worker) -> list[Metric]:
    transfers = _transfers()
    for outcome in DECODE_OUTCOMES:
        transfers.add_metric([outcome, ""], scheduler.totals.get(outcome, 0))
    for reason, count in scheduler.recomputed_by_reason.items():
        transfers.add_metric(["recomputed", reason], count)
    return [
        transfers,
        _verified({result: worker.totals.get(total, 0) for result, total in VERIFIED.items()}),
        CounterMetricFamily(
            "baton_started_requests",
            "Requests that started with the token that the prefill node sampled",
            scheduler.totals.get("started", 0),
        ),
        CounterMetricFamily("baton_fences", "Receiving engines destroyed as a fence", worker.totals.get("fences", 0)),
        GaugeMetricFamily("baton_reservations", "Epochs whose blocks a peer may write to", scheduler.reservations),
        GaugeMetricFamily("baton_reserved_blocks", "Blocks that a peer may write to", scheduler.reserved_blocks),
        GaugeMetricFamily(
            "baton_quarantined_blocks", "Reserved blocks of dirty epochs, kept until a fence", worker.quarantined_blocks
        ),
        histogram_family(
            "baton_commit_to_first_step_seconds",
            "From COMMIT's arrival to the first step that computes with the KV, per loaded transfer",
            scheduler.histograms.get("commit_to_first_step_s"),
        ),
        histogram_family(
            "baton_exposed_transfer_seconds",
            "What the hand-over added to the time to first token, on both nodes, per loaded transfer",
            scheduler.histograms.get("exposed_transfer_s"),
        ),
    ]


def _transfers() -> CounterMetricFamily:
    help_text = "Transfers that have ended, by outcome; a recomputed one has a class of reason"
    return CounterMetricFamily("baton_transfers", help_text, labels=["outcome", "reason"])


def _verified(counts: Mapping[str, int]) -> Metric:
    help_text = "Transfers whose digests the decode node compared, by result"
    return _labelled("baton_verified_transfers", help_text, "result", counts)


def _labelled(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def histogram_family(name: str, help_text: str, values: HistogramValues | None) -> HistogramMetricFamily:
    """Return a snapshot as Prometheus' family; None: one without counts."""
    values = values or HistogramValues()
    bounds = [*map(floatToGoString, values.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(values.counts)), strict=True))
    return HistogramMetricFamily(name, help_text, buckets, values.sum)
