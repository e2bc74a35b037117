"""What one worker has to show, and what all of them show together. The joining is pure.

Two views: *anybody's* holds what `/ready` and `/metrics` say as well; an *operator's* also the rest, as single requests.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry

from baton.contracts.node_info import NodeLoad
from baton.proxy.admin import node_views
from baton.proxy.admission.admission import Admission
from baton.proxy.nodes.latency_histogram import GAP_BOUNDS_S, LatencyHistogram
from baton.proxy.nodes.node import Node
from baton.proxy.nodes.registry import NodeRegistry
from baton.proxy.nodes.views import LeavingView, NodeView

TTFT: Final = "baton_time_to_first_token_seconds"
COUNTERS: Final = {  # name in the feed → series, and which of its labels stay apart
    "requests": ("baton_requests_total", ("path", "status")),
    "leg_failures": ("baton_leg_failures_total", ("role", "kind")),
    "retries": ("baton_retries_total", ("next",)),
    "resumed": ("baton_streams_resumed_total", ()),
    "broken": ("baton_streams_broken_total", ()),
    "refusals": ("baton_refusals_total", ("reason",)),
}
_FOR_ANYBODY: Final = (
    "url",
    "role",
    "slot",
    "state",
    "reason",
    "breaker",
    "breaker_openings",
    "models",
    "requests",
    "other_requests",
    "first",
    "gaps",
)

Counts = dict[str, float]  # labels, joined by a blank → value


class NodeShown(msgspec.Struct, frozen=True, kw_only=True):
    """One node as one worker sees it: its view, and what is not in there."""

    view: NodeView
    first: tuple[int, float]  # P: whole answers, D: first bytes of streams; how many, and the sum of their times (s)
    gaps: tuple[int, float]  # between chunks: likewise
    load: NodeLoad | None = None
    ranks: str = ""


class DashboardSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker shows."""

    worker: int
    nodes: list[NodeShown]
    leaving: list[LeavingView]
    inside: int
    waiting: int
    in_flight: int
    counters: dict[str, Counts]
    ttft: Counts  # upper bound → how many so far (cumulative), and `sum`
    gaps: list[int]  # in all streams, by `GAP_BOUNDS_S`
    gaps_sum_s: float
    requests: dict[str, Any] | None = None  # None: they are not watched


def snapshot(
    worker: int,
    members: NodeRegistry,
    admission: Admission,
    registry: CollectorRegistry,
    requests: dict[str, Any] | None,
) -> DashboardSnapshot:
    series = registry.restricted_registry([name for name, _ in COUNTERS.values()] + [f"{TTFT}_bucket", f"{TTFT}_sum"])
    counters: dict[str, Counts] = {name: {} for name in COUNTERS}
    ttft: Counts = {}
    by_series = {series_name: (counters[name], labels) for name, (series_name, labels) in COUNTERS.items()}
    for family in series.collect():
        for sample in family.samples:
            if sample.name in by_series:
                into, labels = by_series[sample.name]
                _add(into, " ".join(sample.labels[label] for label in labels), sample.value)
            elif sample.name == f"{TTFT}_bucket":
                _add(ttft, sample.labels["le"], sample.value)
            elif sample.name == f"{TTFT}_sum":
                _add(ttft, "sum", sample.value)
    gaps = [node.times.gaps for node in members.decode]
    return DashboardSnapshot(
        worker=worker,
        nodes=[_node(node) for node in members.all()],
        leaving=members.leaving(),
        inside=admission.gate.inside,
        waiting=admission.gate.waiting,
        in_flight=admission.claims.requests,
        counters=counters,
        ttft=ttft,
        gaps=[sum(column) for column in zip(*(each.counts for each in gaps), strict=True)],
        gaps_sum_s=sum(each.sum_s for each in gaps),
        requests=requests,
    )


def joined(snapshots: Sequence[DashboardSnapshot], workers: int) -> dict[str, Any]:
    """Return what all workers that answered show together, for operators."""
    more: dict[tuple[str, str], list[NodeShown]] = {}
    for each in snapshots:
        for node in each.nodes:
            more.setdefault((node.view.role, node.view.url), []).append(node)
    nodes = node_views.joined([node.view for node in each.nodes] for each in snapshots)
    leaving = node_views.leaving(each.leaving for each in snapshots)
    watched = [each.requests for each in snapshots if each.requests is not None]
    return {
        "workers": {"answering": len(snapshots), "of": workers},
        "nodes": [{**view.model_dump(mode="json"), **_sums(more[view.role, view.url])} for view in nodes],
        "leaving": [each.model_dump(mode="json") for each in leaving],
        "inside": sum(each.inside for each in snapshots),
        "waiting": sum(each.waiting for each in snapshots),
        "in_flight": sum(each.in_flight for each in snapshots),
        "counters": {name: _added(each.counters.get(name, {}) for each in snapshots) for name in COUNTERS},
        "ttft": _added(each.ttft for each in snapshots),
        "gaps": [sum(column) for column in zip(*(each.gaps for each in snapshots if each.gaps), strict=True)],
        "gaps_sum_s": sum(each.gaps_sum_s for each in snapshots),
        "gap_bounds_s": list(GAP_BOUNDS_S),
        "requests": {
            "live": sorted((one for each in watched for one in each["live"]), key=itemgetter("at")),
            "live_total": sum(each["live_total"] for each in watched),
            "recent": sorted((one for each in watched for one in each["recent"]), key=itemgetter("at")),
        },
    }


def for_anybody(body: dict[str, Any]) -> dict[str, Any]:
    nodes = [{name: node[name] for name in _FOR_ANYBODY} for node in body["nodes"]]
    return {**body, "nodes": nodes, "leaving": [], "requests": None}


def _node(node: Node) -> NodeShown:
    first = node.times.answered if node.role == "prefill" else node.times.first_bytes
    return NodeShown(
        view=node_views.view(node),
        first=_total(first),
        gaps=_total(node.times.gaps),
        load=node.info.load if node.info else None,
        ranks=_ranks(node),
    )


def _ranks(node: Node) -> str:
    """Say how a node is divided; "" if it is not."""
    info = node.info
    if info is None:
        return ""
    sizes = {
        "TP": info.tensor_parallel_size,
        "PP": info.pipeline_parallel_size,
        "DP": info.data_parallel_size,
    }
    return " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)


def _total(times: LatencyHistogram) -> tuple[int, float]:
    return sum(times.counts), round(times.sum_s, 6)


def _sums(seen: Sequence[NodeShown]) -> dict[str, Any]:
    latest = seen[0]
    return {
        "first": [sum(each.first[0] for each in seen), sum(each.first[1] for each in seen)],
        "gaps": [sum(each.gaps[0] for each in seen), sum(each.gaps[1] for each in seen)],
        **{name: getattr(latest.load, name, None) for name in ("running", "waiting", "kv_usage")},
        "ranks": latest.ranks,
    }


def _add(into: Counts, key: str, value: float) -> None:
    into[key] = into.get(key, 0.0) + value


def _added(all_counts: Any) -> Counts:
    found: Counts = {}
    for counts in all_counts:
        for key, value in counts.items():
            _add(found, key, value)
    return found
