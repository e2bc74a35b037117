"""What one worker sees of a member, and what several workers see of it together. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from baton.proxy.nodes.circuit_breaker import BreakerState
from baton.proxy.nodes.node import Node, State
from baton.proxy.nodes.role_load import decode_load, prefill_load
from baton.proxy.nodes.views import LeavingView, NodeView

# The worst that any worker sees counts. One that has just started knows least: what it does not know is no trouble.
_BY_SEVERITY: Final[Sequence[str]] = (
    State.UNKNOWN,
    State.READY,
    State.SILENT,
    State.DRAINING,
    State.ISOLATED,
    State.UNREADY,
    State.DOWN,
)
_BREAKERS_BY_SEVERITY: Final[Sequence[str]] = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)
V = TypeVar("V", NodeView, LeavingView)


def view(node: Node) -> NodeView:
    return NodeView(
        url=node.url,
        role=node.role,
        slot=node.slot,
        state=node.state,
        reason=node.reason,
        breaker=node.breaker.state,
        breaker_openings=node.breaker.openings,
        draining=node.draining,
        incarnation=node.incarnation,
        models=node.info.served_models if node.info else [],
        requests=node.requests,
        prompt_bytes=node.prompt_bytes,
        own_prompt_bytes=node.own_prompt_bytes,
        other_requests=round(node.others.requests),
        both_ways=node.info is not None and node.info.both_ways,
        started_as=node.info.role if node.info else None,
        prefill_load=prefill_load(node),
        decode_load=decode_load(node),
        streams_left=dict(node.moves.results),
        streams_staying=dict(node.moves.staying),
    )


def joined(workers: Iterable[Sequence[NodeView]]) -> list[NodeView]:
    """Return each member once: the worst that is seen of it, and the sums of what is in flight."""
    return [_one(views) for views in _by_node(workers)]


def leaving(workers: Iterable[Sequence[LeavingView]]) -> list[LeavingView]:
    """Return each node that is on its way out once, with all its requests."""
    return [
        views[0].model_copy(update={"requests": sum(each.requests for each in views)}) for views in _by_node(workers)
    ]


def _by_node(workers: Iterable[Sequence[V]]) -> Iterable[list[V]]:
    found: dict[tuple[str, str], list[V]] = {}
    for seen in workers:
        for each in seen:
            found.setdefault((each.role, each.url), []).append(each)
    return found.values()


def _one(views: Sequence[NodeView]) -> NodeView:
    worst = max(views, key=lambda each: _BY_SEVERITY.index(each.state))
    own = sum(each.requests for each in views)
    return worst.model_copy(
        update={
            "slot": views[0].slot,
            "breaker": max((each.breaker for each in views), key=_BREAKERS_BY_SEVERITY.index),
            "breaker_openings": sum(each.breaker_openings for each in views),
            "draining": any(each.draining for each in views),
            "requests": own,
            "prompt_bytes": sum(each.prompt_bytes for each in views),
            "own_prompt_bytes": sum(each.own_prompt_bytes for each in views),
            "prefill_load": known(sum, (each.prefill_load for each in views)),
            "decode_load": known(max, (each.decode_load for each in views)),
            "streams_left": dict(sum((Counter(each.streams_left) for each in views), Counter())),
            "streams_staying": dict(sum((Counter(each.streams_staying) for each in views), Counter())),
            # What others have, seen from one worker, is in part what the other workers have.
            "other_requests": max(0, max(each.requests + each.other_requests for each in views) - own),
        }
    )


def known(join: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    """Join what is known; None: nothing is."""
    found = [value for value in values if value is not None]
    return join(found) if found else None
