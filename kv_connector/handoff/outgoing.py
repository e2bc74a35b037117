"""What the prefill rank knows of one transfer, and what it hands to others about it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from kv_connector.handoff.pushing import Coverage, Piece
from kv_connector.protocol import Reserve


class Prompt(NamedTuple):
    """What the scheduler says of a prompt when it is first scheduled."""

    tokens: int
    blocks: int  # scheduler blocks that the prompt fills, the last one perhaps partly
    prompt_hash: bytes
    cached_tokens: int = 0  # of them, found in our own prefix cache


class Push(NamedTuple):
    """One push call that the sender may make: it has been counted as under way."""

    transfer: "Outgoing"
    epoch: int
    pieces: tuple[Piece, ...]


class Complaint(NamedTuple):
    """A decode rank found other KV than we had committed."""

    transfer_id: str
    decode: int
    mismatch: str


@dataclass(slots=True, eq=False)
class Outgoing:
    """One transfer on P."""

    transfer_id: str
    since: float  # s, when first heard of
    layers: int
    decode: int = 0  # incarnation of the decode rank; 0: not known yet
    request_id: str = ""  # empty: the prompt has not started here
    prompt: Prompt | None = None
    reservation: Reserve | None = None
    source_blocks: list[int] = field(default_factory=list)  # our block ids, in prompt order
    ready: list[int] = field(default_factory=list)  # blocks of the prompt written, per layer
    coverage: Coverage | None = None  # exists once both prompt and reservation do
    in_flight: int = 0  # push calls
    ending: str = ""  # why it drains; empty: it does not
    digests: bytes = b""  # of the source blocks; empty: not computed
    held_since: float | None = None  # s; the scheduler keeps the source blocks for us
    marks: dict[str, float] = field(default_factory=dict)  # s, for timings
    pushing_since: float | None = None  # s; some push call has been under way without a gap
    pushing_s: float = 0.0  # before that: time in which some push call was under way

    @property
    def epoch(self) -> int:
        """The reserved epoch; 0 while nothing is reserved."""
        return self.reservation.epoch if self.reservation else 0

    def pushed_blocks(self, block_tokens: int) -> list[int]:
        """Our ids of the blocks that the reservation asks for, in prompt order."""
        assert self.reservation is not None
        first = self.reservation.first_token // block_tokens
        return self.source_blocks[first : first + len(self.reservation.blocks[0])]
