"""How requests ended: within every promise, or as errors by kind; and answers by Baton's path.

SLOs are written as vLLM takes them, `ttft:500 tpot:50`, in ms.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from baton.contracts.http import DISAGGREGATED, LOCAL, RECOMPUTED
from baton.loadtest.errors import UsageError
from baton.loadtest.measures.record import KINDS, STATUS, Record

NAMES: Final = ("ttft", "tpot", "e2el")
_PATHS: Final = (DISAGGREGATED, LOCAL, RECOMPUTED)


def parse_slos(words: Sequence[str]) -> dict[str, float]:
    """Read SLOs. Raises `UsageError`: a word is not of the form NAME:MILLISECONDS."""
    slos = {}
    for word in words:
        name, _, limit = word.partition(":")
        try:
            limit_ms = float(limit)
        except ValueError:
            limit_ms = -1.0
        if name not in NAMES or not limit_ms >= 0:
            raise UsageError(f"--goodput {word}: expected NAME:MILLISECONDS with a name of {', '.join(NAMES)}")
        slos[name] = limit_ms
    return slos


def good_requests(done: Sequence[Record], slos_ms: Mapping[str, float]) -> int:
    return sum(is_good(record, slos_ms) for record in done)


def is_good(record: Record, slos_ms: Mapping[str, float]) -> bool:
    """Tell whether a completed request kept all of them; one token or none has a TPOT of 0, as in vLLM's benchmark."""
    taken_s = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2el": record.latency_s}
    return all((taken_s[name] or 0.0) <= limit_ms / 1000 for name, limit_ms in slos_ms.items())


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
