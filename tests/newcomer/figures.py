"""The walks as a table."""

from collections.abc import Sequence

from tests.newcomer.journey import MARKS, Journey, Step


def total_s(steps: Sequence[Step]) -> float:
    return sum(step.seconds for step in steps)


def table(walks: Sequence[tuple[str, Journey]]) -> str:
    """Return Markdown: a column for each walk, a row for each step."""
    taken = {step.name for _, journey in walks for step in journey.first}
    names = [name for name in ("clone", *MARKS.values()) if name in taken]
    rows = [["seconds", *(name for name, _ in walks)], ["---", *("---:" for _ in walks)]]
    rows += [[name, *(_cell(journey.first, name) for _, journey in walks)] for name in names]
    rows.append(["**an empty folder to the first answer**", *(f"**{total_s(j.first):.0f}**" for _, j in walks)])
    rows.append(["2P2D, from the command to its first answer", *(f"{total_s(j.more):.0f}" for _, j in walks)])
    rows.append(["received up to the first answer, MiB", *(str(j.received_mib) for _, j in walks)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(steps: Sequence[Step], name: str) -> str:
    found = [step.seconds for step in steps if step.name == name]
    return f"{sum(found):.1f}" if found else "–"
