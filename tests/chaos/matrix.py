"""The report: who was hit × at which moment → what the clients got, how long it took, how often. Pure.

As Markdown, since it becomes `docs/failures.md`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.chaos.memory import Growth
from tests.chaos.outcome import Outcome
from tests.chaos.phases import ORDER, Phase
from tests.chaos.schedule import Cut, Fault, Kill, Stall
from tests.chaos.tally import Tally
from tests.chaos.verdict import Result

HEADER = ("hit", "moment", "faults", "clients under way", "slowest, bound (s)", "blocks back (s)", "resumed (s)")


@dataclass(slots=True)
class Row:
    """All faults of one kind on one victim in one phase."""

    faults: int = 0
    results: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    bound_s: float = 0.0
    given_back_s: float = 0.0
    resumed_s: float = 0.0
    problems: int = 0


def hit_of(fault: Fault) -> str:
    """Say what is done to whom."""
    names = {"prefill": "P", "decode": "D", "proxy": "proxy"}
    engine = "'s engine"
    match fault:
        case Kill(engine_only=engine_only):
            return f"{names[fault.victim]}{engine if engine_only else ''} killed"
        case Stall(engine_only=engine_only):
            return f"{names[fault.victim]}{engine if engine_only else ''} stopped"
        case Cut():
            return str(fault.way)


def rows_of(outcomes: Iterable[Outcome]) -> dict[tuple[str, Phase], Row]:
    """Sum outcomes up by victim and phase."""
    rows: dict[tuple[str, Phase], Row] = {}
    for outcome in outcomes:
        if not outcome.reached:
            continue
        row = rows.setdefault((hit_of(outcome.fault), outcome.fault.phase), Row())
        row.faults += 1
        row.results += outcome.results
        row.slowest_s = max(row.slowest_s, outcome.slowest_s)
        row.bound_s = max(row.bound_s, outcome.bound_s)
        row.given_back_s = max(row.given_back_s, outcome.given_back_s)
        row.resumed_s = max(row.resumed_s, outcome.resumed_s)
        row.problems += len(outcome.problems)
    return rows


def fault_table(outcomes: Sequence[Outcome]) -> str:
    """Return the matrix of kills, stalls and cuts."""
    rows = rows_of(outcomes)
    body = [
        (
            hit,
            str(phase),
            str(row.faults),
            results_of(row.results) + (f"; **{row.problems} problems**" if row.problems else ""),
            f"{row.slowest_s:.1f}, {row.bound_s:.1f}",
            f"{row.given_back_s:.2f}",
            f"{row.resumed_s:.1f}",
        )
        for (hit, phase), row in sorted(rows.items(), key=lambda item: (item[0][0], ORDER.index(item[0][1])))
    ]
    return table(HEADER, body)


def storm_table(tally: Tally) -> str:
    """Return what became of the blocks of clients that left, by phase."""
    body = []
    for phase in ORDER:
        took = sorted(tally.given_back_s.get(phase, ()))
        times = (f"{took[len(took) // 2]:.3f}", f"{took[-1]:.3f}") if took else ("–", "–")
        body.append((str(phase), str(tally.left[phase]), *times))
    return table(("client left", "count", "transfer closed, median (s)", "slowest (s)"), body)


def storm_summary(tally: Tally) -> str:
    return (
        f"{tally.aborts} clients left in a known phase, {tally.results[Result.EXACT]} stayed and were answered exactly "
        f"({results_of(tally.paths)}), the slowest after {tally.slowest_answer_s:.1f} s; "
        f"{tally.waves} waves in {tally.took_s:.0f} s, every block free at most {max(tally.settled_s, default=0):.2f} s "
        "after a wave's last client. Every node compared pool, scheduler and ledger after every wave. "
        + (f"The digests of {tally.verified} transfers were compared." if tally.verified else "")
    )


def memory_table(ours: Sequence[Growth], plain: Sequence[Growth]) -> str:
    """Return the growth of each process."""
    body = [
        (
            growth.process,
            f"{growth.before_bytes / 2**20:.1f}",
            f"{growth.after_bytes / 2**20:.1f}",
            f"{growth.share:+.2%}",
        )
        for growth in [*ours, *plain]
    ]
    return table(("process", "PSS before (MiB)", "after", "growth"), body)


def results_of(results: Counter[str]) -> str:
    """Return a counter as text, the most frequent first."""
    return ", ".join(f"{count} {name}" for name, count in results.most_common()) or "none"


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])
