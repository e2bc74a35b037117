"""The sizes of everything that a rank keeps, and the most that each may have.

The bounds are read where they are set, at the time of the look, so that a run may narrow them.
"""

from collections.abc import Sized
from itertools import chain
from typing import NamedTuple

from baton.kv_connector.handoff import consumer, peer_quotas
from tests.support.ranks import Ranks

PENDING = 2_000 + 4 * peer_quotas.BEAT_BUDGET  # answers that wait to be sent: some, and those to a few long beats


class Table(NamedTuple):
    name: str
    size: int
    bound: int


def tables(ranks: Ranks, requests: int) -> list[Table]:
    """Look at both ranks, whose schedulers have at most `requests` requests under way each."""
    with ranks.prefill._lock, ranks.decode._lock:
        return list(chain(_prefill(ranks, requests), _decode(ranks, requests)))


def _prefill(ranks: Ranks, requests: int) -> list[Table]:
    worker = ranks.prefill
    machine, loop, sender = worker._producer, worker._loop, worker._sender
    held = machine._quotas
    outputs: tuple[Sized, ...] = (machine.outbox, machine.ended, machine.to_digest, machine.complaints)
    ranks_known = peer_quotas.MAX_PEERS + requests  # those whose last pushes have not ended, too
    rows: list[tuple[str, Sized | int, int]] = [
        ("P sessions", machine.sessions, peer_quotas.MAX_PEERS),
        ("P routes", machine._routes, peer_quotas.MAX_PEERS),
        ("P introductions", machine._hellos, peer_quotas.MAX_PEERS),
        ("P transfers", machine.transfers, peer_quotas.MAX_UNSTARTED + requests),
        ("P requests", machine._ids, requests),
        ("P pushable", machine._pushable, requests),
        ("P tombstones", machine.tombstones._outcomes, machine.tombstones._capacity),
        ("P owners of tombstones", machine.tombstones._by_owner, machine.tombstones._capacity),
        ("P claims: transfers", held.transfers, ranks_known),
        ("P claims: blocks", held.blocks, ranks_known),
        ("P claims: places", held.places, ranks_known),
        ("P claims: engines", held.owners, peer_quotas.MAX_PEERS * peer_quotas.MAX_ENGINES_EACH),
        ("P most transfers of one rank", max(held.transfers.values(), default=0), peer_quotas.MAX_TRANSFERS_EACH),
        ("P most blocks of one rank", max(held.blocks.values(), default=0), peer_quotas.MAX_BLOCKS_EACH),
        ("P most places of one rank", max(held.places.values(), default=0), peer_quotas.MAX_PLACES_EACH),
        ("P connections", worker._speakers._speakers, worker._speakers._capacity),
        ("P outputs", sum(map(len, outputs)), 0),
        ("P released", machine.released, requests),
        ("P to be sent", loop._actions, PENDING),
        ("P pairings of the sender", sender._pairings, ranks_known),
        ("P sizes of calls", sender._max_units_to, ranks_known),
        ("P ends of pushes", sender._ended_s, ranks_known),
        ("P layers that the device is to write", sender._waiter._pending, requests),
        ("P inbox of the sender", sender._inbox.qsize(), 100 * requests),
        ("P to be digested", worker._digests._work.qsize(), requests),
        ("P blocks of verified transfers", worker._read_from, 256),
        ("P kinds refused", worker._refusals._counts, 30),
        ("P kinds of failures", loop._logged, 0),
    ]
    return [Table(name, size if isinstance(size, int) else len(size), bound) for name, size, bound in rows]


def _decode(ranks: Ranks, requests: int) -> list[Table]:
    worker = ranks.decode
    machine, loop = worker._consumer, worker._loop
    domains, report = machine.domains, worker._report
    outputs: tuple[Sized, ...] = (
        machine.outbox,
        machine.resolved,
        machine.closed,
        machine.started,
        machine.fences,
        machine.forgotten,
        machine.to_verify,
    )
    rows: list[tuple[str, Sized | int, int]] = [
        ("D sessions", machine.sessions, 8),
        ("D transfers", machine.transfers, requests),
        ("D requests", machine._ids, requests),
        ("D peers to be told", machine._unannounced, 8),
        ("D domains of peers", domains._assigned, 8),
        ("D retired engines", len(domains.retired) + len(domains.fencing), requests),
        ("D engines", worker._engines._engines, requests + 8),
        ("D outputs", sum(map(len, outputs)), 0),
        ("D results", len(worker._finished) + len(worker._failed), 2 * requests),
        ("D report", len(report.started) + len(report.failed) + len(report.closed) + len(report.endings), 4 * requests),
        ("D to be digested", worker._digests._work.qsize(), requests),
        ("D moments of transfers", len(worker._reserve_sent_s) + len(worker._committed_s), 2 * requests),
        ("D peers that were declined to", machine._declined, 8),
        ("D transfers declined", sum(map(len, machine._declined.values())), 8 * consumer.MAX_DECLINED),
        ("D to be sent", loop._actions, PENDING),
        ("D connections", loop._clients, 8),
        ("D kinds refused", worker._refusals._counts, 30),
        ("D kinds of failures", loop._logged, 0),
    ]
    return [Table(name, size if isinstance(size, int) else len(size), bound) for name, size, bound in rows]
