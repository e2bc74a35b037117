"""What the decode rank knows of one transfer, and what it hands to others about it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from baton.kv_connector.protocol.messages import Commit


class Phase(IntEnum):
    """Where a transfer is on D."""

    WATCHING = 0  # P shall know that we care; nothing reserved
    PREPARED = 1  # blocks allocated, RESERVE not sent: no peer can write
    RESERVED = 2  # RESERVE may have been sent
    REVOKING = 3  # given up; P has not said yet that it stopped
    DIRTY = 4  # writes may come until the fence
    VERIFYING = 5  # committed, so no peer writes any more; not used before its digests have been compared


class BlockReservation(NamedTuple):
    """What the scheduler reserved for one request."""

    tokens: int  # prompt length
    from_token: int  # already here; a multiple of the block size
    blocks: list[list[int]]  # block ids from `from_token` on, per KV group
    prompt_hash: bytes


class Resolved(NamedTuple):
    """What became of a request's KV."""

    request_id: str
    transfer_id: str
    ok: bool
    reserved: bool  # whether blocks had been allocated, that is whether vLLM waits for us
    reason: str
    commit: Commit | None


@dataclass(slots=True, eq=False)
class ConsumerTransfer:
    """One transfer on D."""

    transfer_id: str
    request_id: str
    peer: str  # control address of P
    since: float  # s
    shards: int = 1  # P ranks that this request's part comes from, each in a transfer of its own
    phase: Phase = Phase.WATCHING
    epoch: int = 0
    wish: BlockReservation | None = None
    zeroed: bool = False
    started: bool = False  # P has said that it computes the prompt
    engine: str = ""
    resolved: bool = False
    revoked_at: float = 0.0
    commit: Commit | None = None  # while it is being verified

    @property
    def num_blocks(self) -> int:
        """Blocks that P may write to."""
        return sum(block != 0 for group in self.wish.blocks for block in group) if self.wish else 0
