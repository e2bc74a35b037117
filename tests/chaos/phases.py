"""The moments of a request's life at which something happens to it. Pure.

A fault counts for a phase only if the request was seen to be in it, immediately before the fault: by both nodes' ledgers
(`/baton/transfers`), or, at either end of its life, by the client itself.
"""

from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.workload import BLOCK_BYTES


class Phase(StrEnum):
    """Where a request is. The order is that of a request's life."""

    ARRIVING = "before admission"  # the proxy has only a part of the request's body
    QUEUED = "queued on P"  # P has not scheduled the prompt; D has reserved nothing
    WAITING = "waiting on D"  # D has reserved blocks; P does not compute: it has not begun, or pushes the rest
    # P has computed a part of the prompt; every pushed block was pushed in all layers.
    BETWEEN_CHUNKS = "between chunks"
    BETWEEN_LAYERS = "between layers"  # … some block was pushed in some of its layers only
    FINISHED = "P finished, D has not admitted"
    FIRST_TOKEN = "after the first token"  # the client has it; the decode node may not have the KV yet
    DECODING = "decoding"  # the client has some of the tokens, but not all


ORDER = tuple(Phase)
BY_LEDGER = ORDER[1:-2]  # phases that the nodes know of; the others are known to the client


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPrefill:
    """What a prefill node says of a transfer."""

    node: str
    state: str  # of the scheduler: queued, running, complete, held, void; empty: only the worker knows of it
    pushed_bytes: int = 0
    expected_bytes: int = 0  # 0 until both sides are known


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDecode:
    """What a decode node says of a transfer."""

    node: str
    state: str  # of the scheduler: waiting, reserved, settled


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What both nodes say of one request at one moment."""

    transfer_id: str
    prefill: OnPrefill | None = None
    decode: OnDecode | None = None


def phase_of(view: View) -> Phase | None:
    """Name the phase of a request; None where what is known does not say."""
    decode = view.decode.state if view.decode else ""
    prefill = view.prefill.state if view.prefill else ""
    if decode == "settled":
        return None  # its tokens are for the client to see
    if prefill == "queued":
        return {"waiting": Phase.QUEUED, "reserved": Phase.WAITING}.get(decode)
    if prefill == "running":
        pushed = view.prefill.pushed_bytes if view.prefill else 0
        return Phase.BETWEEN_LAYERS if pushed % BLOCK_BYTES else Phase.BETWEEN_CHUNKS
    if prefill in ("complete", "held"):
        return {"waiting": Phase.FINISHED, "reserved": Phase.WAITING}.get(decode)
    return None
