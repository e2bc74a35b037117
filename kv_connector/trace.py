"""The last transfers as Chrome trace events, which chrome://tracing and ui.perfetto.dev open. Pure.

One process per node, so that the lists of several nodes, joined, show a request's life on both. For that alone P's and
D's milestones are put on one axis, by wall clock: **between machines it is as right as their clocks agree**, within one
it is exact. Transfers that overlap in time get rows of their own, and a row is used again once it is free.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from baton.contracts.kv_transfer import Role

Event = dict[str, Any]
Record = Mapping[str, Any]  # of an ended transfer, as the node's snapshots list them under `recent`

ORIGINS: Mapping[Role, str] = {"prefill": "scheduled_at_s", "decode": "arrived_at_s"}
LANES: Mapping[Role, Sequence[str]] = {"prefill": ("compute", "pushes"), "decode": ("wait",)}


class _Span(NamedTuple):
    lane: int
    name: str
    begin: str  # milestone
    ends: tuple[str, ...]  # the first of these that was reached


_SPANS: Mapping[Role, Sequence[_Span]] = {
    "prefill": (
        _Span(0, "prefill", "scheduled", ("last_layer",)),
        _Span(0, "exposed push", "last_layer", ("commit",)),
        _Span(1, "pushes", "first_push", ("last_push",)),
    ),
    "decode": (
        _Span(0, "allocation", "arrived", ("reserved", "failed")),
        _Span(0, "waiting for KV", "reserved", ("commit_received", "failed")),
        _Span(0, "commit to first step", "commit_received", ("first_step",)),
    ),
}


def trace_events(
    records: Iterable[Record], *, role: Role, process: int, name: str, wall_offset_s: float
) -> list[Event]:
    """Turn a node's records of ended transfers into events.

    `process`: a number of its own in the trace. `wall_offset_s`: this machine's wall clock minus its monotonic one.
    """
    drawn = [found for record in records if (found := _draw(record, role, wall_offset_s))]
    rows = rows_of([_extent_us(transfer) for transfer in drawn])
    events = list(_names(process, f"{name} (wall clock, approximate)", role, max(rows, default=-1) + 1))
    for transfer, row in zip(drawn, rows, strict=True):
        events += (event | _thread(process, role, row, lane) for lane, event in transfer)
    return events


def rows_of(extents: Sequence[tuple[int, int]]) -> list[int]:
    """Give each extent the lowest row in which nothing overlaps with it."""
    free_from: list[int] = []  # per row
    rows = [0] * len(extents)
    for index in sorted(range(len(extents)), key=lambda index: extents[index]):
        begin, end = extents[index]
        row = next((row for row, free in enumerate(free_from) if free <= begin), len(free_from))
        free_from[row : row + 1] = [end]
        rows[index] = row
    return rows


def _draw(record: Record, role: Role, wall_offset_s: float) -> list[tuple[int, Event]]:
    timings, origin_s = record["timings_s"], record[ORIGINS[role]] + wall_offset_s
    arguments = {key: value for key, value in record.items() if key not in ("timings_s", "prefill")}
    drawn: list[tuple[int, Event]] = []
    for lane, name, begin, ends in _SPANS[role]:
        end = next((end for end in ends if end in timings), "")
        if begin in timings and end:
            at, until = (round((origin_s + timings[milestone]) * 1e6) for milestone in (begin, end))
            event = {"ph": "X", "cat": "baton", "name": name, "ts": at, "dur": until - at, "args": arguments}
            drawn.append((lane, event))
    return drawn


def _extent_us(drawn: Sequence[tuple[int, Event]]) -> tuple[int, int]:
    begin = min(event["ts"] for _, event in drawn)
    return begin, max(event["ts"] + event["dur"] for _, event in drawn)


def _names(process: int, name: str, role: Role, rows: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for row in range(rows):
        for lane, title in enumerate(LANES[role]):
            naming = {"ph": "M", "name": "thread_name", "args": {"name": f"{title} {row + 1}"}}
            yield naming | _thread(process, role, row, lane)


def _thread(process: int, role: Role, row: int, lane: int) -> Event:
    return {"pid": process, "tid": row * len(LANES[role]) + lane + 1}
