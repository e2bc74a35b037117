"""One snapshot of several: of a node's data-parallel engines, and of the ranks of each. Pure.

Counts are added up, lists are joined; what is the same for all of them is taken from the first.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

_COUNTED: Final = ("totals", "refused", "recomputed_by_reason")  # name → number, each
_JOINED: Final = ("transfers", "sessions", "recent", "failures")
_ADDED: Final = ("free_blocks", "reservations", "reserved_blocks", "open_transfers", "quarantined_blocks")

Snapshot = Mapping[str, Any]


def ranks(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Combine the snapshots of workers; at least one."""
    if len(snapshots) == 1:
        return dict(snapshots[0])
    first = snapshots[0]
    return {name: _combine(name, [snapshot.get(name) for snapshot in snapshots]) for name in first}


def engines(snapshots: Sequence[Snapshot]) -> dict[str, Any]:
    """Combine the snapshots of schedulers, each of an engine with a block pool of its own; at least one."""
    return ranks(snapshots) | {
        "engines": len(snapshots),
        "num_blocks": sum(int(snapshot.get("num_blocks", 0)) for snapshot in snapshots),
        "control_addresses": [",".join(snapshot.get("control_addresses", ())) for snapshot in snapshots],
    }


def _combine(name: str, values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    if name in _COUNTED:
        return dict(sum(map(Counter, there), Counter[str]()))
    if name in _JOINED:
        return [item for value in there for item in value]
    if name in _ADDED:
        return sum(there)
    if name == "histograms":
        return {key: _histogram([value[key] for value in there]) for key in there[0]}
    return there[0] if there else None


def _histogram(values: Sequence[Snapshot]) -> dict[str, Any]:
    counts = [sum(column) for column in zip(*(value["counts"] for value in values), strict=True)]
    return {**values[0], "counts": counts, "sum": sum(value["sum"] for value in values)}
