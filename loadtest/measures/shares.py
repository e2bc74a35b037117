"""How requests ended: errors by kind, answers by Baton's path."""

from collections import Counter
from collections.abc import Sequence

from baton.contracts.http import DISAGGREGATED, LOCAL, RECOMPUTED
from baton.loadtest.measures.record import KINDS, STATUS, Record

_PATHS = (DISAGGREGATED, LOCAL, RECOMPUTED)


def errors_by_kind(records: Sequence[Record]) -> dict[str, int]:
    """Count failures, in the order of `KINDS`; a status is named with its number (`status 503`)."""
    counts = Counter(_name(record) for record in records if not record.ok)
    return dict(sorted(counts.items(), key=lambda item: (KINDS.index(item[0].partition(" ")[0]), item[0])))


def paths(records: Sequence[Record]) -> dict[str, int]:
    """Count completed requests by `x-baton-path`; empty where the server is no Baton proxy."""
    counts = Counter(record.path for record in records if record.ok and record.path)
    return {name: counts[name] for name in (*_PATHS, *sorted(set(counts) - set(_PATHS))) if name in counts}


def _name(record: Record) -> str:
    return f"{STATUS} {record.status}" if record.error == STATUS else record.error
