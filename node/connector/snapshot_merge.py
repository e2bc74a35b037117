"""One snapshot of several: of a node's data-parallel engines, and of the ranks of each. Pure.

Counts are added up, lists are joined; what is the same for all of them is taken from the first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from baton.kv_connector.telemetry.both_sides import REVERSE

_COUNTED: Final = ("totals", "refused", "recomputed_by_reason")  # name → number, each
_JOINED: Final = ("transfers", "sessions", "recent", "failures")
_ADDED: Final = ("free_blocks", "reservations", "reserved_blocks", "open_transfers", "quarantined_blocks")

Snapshot = Mapping[str, Any]


def ranks(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Combine the snapshots of one engine's workers, which share its pool; at least one."""
    pool: dict[str, Any] = {"quarantined_blocks": max(snapshot.get("quarantined_blocks", 0) for snapshot in snapshots)}
    if REVERSE in snapshots[0]:
        pool[REVERSE] = ranks([snapshot[REVERSE] for snapshot in snapshots])
    return _together(snapshots) | {name: value for name, value in pool.items() if name in snapshots[0]}


def workers(engines: Sequence[Sequence[Snapshot]]) -> dict[str, Any]:
    return _together([ranks(snapshots) for snapshots in engines])


def schedulers(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Combine the snapshots of schedulers, each of an engine with a block pool of its own; at least one."""
    return _together(snapshots) | {
        "engines": len(snapshots),
        "num_blocks": sum(int(snapshot.get("num_blocks", 0)) for snapshot in snapshots),
        "control_addresses": [",".join(snapshot.get("control_addresses", ())) for snapshot in snapshots],
    }


def integrity(answers: Sequence[Snapshot]) -> dict[str, Any]:
    """Combine what engines found when they compared their books; at least one."""
    if len(answers) == 1:
        return dict(answers[0])
    counted = ("idle_checks", "integrity_findings")
    return {
        **{name: all(answer[name] for answer in answers) for name in ("ok", "settled", "owners_known")},
        "findings": [finding for answer in answers for finding in answer["findings"]],
        **{name: sum(answer[name] for answer in answers) for name in counted},
    }


def runners(reports: Sequence[Snapshot]) -> dict[str, Any]:
    """Combine what each engine's worker tells of its tokens' way to the host; at least one."""
    tokens = [report["tokens"] for report in reports if "tokens" in report]
    syncs = dict(sum((Counter(report["syncs"]) for report in reports), Counter[str]()))
    return {**reports[0], "syncs": syncs, **({"tokens": _tokens(tokens)} if tokens else {})}


def _tokens(values: Sequence[Snapshot]) -> dict[str, Any]:
    """Add up, but for the most that one engine had in use at once."""
    return {name: _of_tokens(name, [value[name] for value in values]) for name in values[0]}


def _of_tokens(name: str, values: Sequence[Any]) -> Any:
    if name == "histograms":
        return _combine(name, values)
    return max(values) if name.endswith("_max") else sum(values)


def _together(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    if len(snapshots) == 1:
        return dict(snapshots[0])
    return {name: _combine(name, [snapshot.get(name) for snapshot in snapshots]) for name in snapshots[0]}


def _combine(name: str, values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    if name in _COUNTED:
        total: Counter[str] = Counter()
        for value in there:
            total.update(value)  # adding counters would drop what is 0
        return dict(total)
    if name in _JOINED:
        return [item for value in there for item in value]
    if name in _ADDED:
        return sum(there)
    if name == REVERSE:
        return _together(there)
    if name == "engines":  # of workers: the sessions that peers write to
        return {key: [session for value in there for session in value[key]] for key in there[0]}
    if name == "histograms":
        return {key: _histogram([value[key] for value in there]) for key in there[0]}
    return there[0] if there else None


def _histogram(values: Sequence[Snapshot]) -> dict[str, Any]:
    counts = [sum(column) for column in zip(*(value["counts"] for value in values), strict=True)]
    return {**values[0], "counts": counts, "sum": sum(value["sum"] for value in values)}
