"""What the prefill rank knows of one transfer, and what it hands to others about it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from baton.kv_connector.handoff.layer_times import LayerTimes
from baton.kv_connector.handoff.pushing import NOTHING, ONLY, Coverage, GroupPair, Piece, TransferLayout
from baton.kv_connector.protocol.messages import Reserve, SampledToken


class Prompt(NamedTuple):
    """What the scheduler says of a prompt when it is first scheduled."""

    tokens: int
    blocks: int  # scheduler blocks that the prompt fills, the last one perhaps partly
    prompt_hash: bytes
    cached_tokens: int = 0  # of them, found in our own prefix cache
    shards: int = 1  # ranks of ours from which the decode rank takes its part, as far as we know
    samples: bool = False  # this rank will say what the first token is, and COMMIT waits for it
    is_answer: bool = False  # its end is an answer's tokens, which can be computed elsewhere: not held for long


class Progress(NamedTuple):
    """What one step does for one prompt."""

    request_id: str
    new_blocks: list[list[int]]  # block ids that the prompt got in this step, by KV cache group, in prompt order
    ready_blocks: int  # blocks of the prompt that are complete when this step's forward pass has run


class Push(NamedTuple):
    """One push call that the sender may make: it has been counted as under way."""

    transfer: "ProducerTransfer"
    epoch: int
    pieces: tuple[Piece, ...]


class MismatchReport(NamedTuple):
    """A decode rank found other KV than we had committed."""

    transfer_id: str
    decode: int
    mismatch: str


@dataclass(slots=True, eq=False)
class ProducerTransfer:
    """One transfer on P."""

    transfer_id: str
    since: float  # s, when first heard of
    layers: int
    decode: int = 0  # incarnation of the decode rank; 0: not known yet
    request_id: str = ""  # empty: the prompt has not started here
    prompt: Prompt | None = None
    reservation: Reserve | None = None
    source_blocks: list[list[int]] = field(default_factory=list)  # our block ids, in prompt order, by KV cache group
    ready: list[int] = field(default_factory=list)  # blocks of the prompt written, per layer
    coverage: Coverage | None = None  # exists once both prompt and reservation do
    terms: TransferLayout = NOTHING  # likewise
    in_flight: int = 0  # push calls
    ending: str = ""  # why it drains; empty: it does not
    digests: bytes = b""  # of the source blocks; empty: not computed
    first: SampledToken | None = None  # the answer's first token
    held_since: float | None = None  # s; the scheduler keeps the source blocks for us
    marks: dict[str, float] = field(default_factory=dict)  # s, for timings
    pushing_since: float | None = None  # s; some push call has been under way without a gap
    pushing_s: float = 0.0  # before that: time in which some push call was under way
    layer_times: LayerTimes | None = None  # for people; None: they are not recorded

    @property
    def epoch(self) -> int:
        """The reserved epoch; 0 while nothing is reserved."""
        return self.reservation.epoch if self.reservation else 0

    def pushed_blocks(self, block_tokens: int, group: GroupPair = ONLY) -> list[int]:
        """Our ids of the blocks that the reservation asks for in a group, in prompt order.

        Blocks of the same size on both sides. The last may not exist yet: then it is not asked for.
        """
        assert self.reservation is not None
        first = self.reservation.from_token // block_tokens
        wanted = self.reservation.blocks[group.theirs]
        ours = self.source_blocks[group.ours][first : first + len(wanted)]
        return [block for block, theirs in zip(ours, wanted, strict=False) if theirs]

    def units(self, unit_tokens: int, group: GroupPair = ONLY) -> "UnitMapping":
        """Where the units that the reservation asks for in a group lie, on either side."""
        assert self.reservation is not None
        ours, theirs = self.terms.block_units, self.terms.their_block_units
        first = self.reservation.from_token // unit_tokens
        source, target = self.source_blocks[group.ours], self.reservation.blocks[group.theirs]
        return UnitMapping(source, target, first, ours, theirs, has_gaps=group.places > 1)


class UnitMapping(NamedTuple):
    """The units of one transfer, counted from the first that D wants."""

    source_blocks: list[int]  # of the whole prompt
    target_blocks: list[int]  # from the first wanted token on
    first: int  # unit of the prompt that counts as 0; a block of D's begins with it
    block_units: int
    their_block_units: int
    has_gaps: bool = False  # some places have no block: blocks of the same size on both sides

    def lie(self, start: int, stop: int) -> tuple[list[int], list[int], list[int]]:
        """Return for units `[start, stop)` our block, D's block, and which unit of the larger block it is."""
        ours, theirs = self.block_units, self.their_block_units
        if self.has_gaps:
            taken = [place for place in range(start, stop) if self.target_blocks[place]]
            return (
                [self.source_blocks[self.first + place] for place in taken],
                [self.target_blocks[place] for place in taken],
                [0] * len(taken),
            )
        if ours == theirs == 1:
            first = self.first + start
            return (
                self.source_blocks[first : first + stop - start],
                self.target_blocks[start:stop],
                [0] * (stop - start),
            )
        larger, places = max(ours, theirs), range(start, stop)
        return (
            [self.source_blocks[(self.first + place) // ours] for place in places],
            [self.target_blocks[place // theirs] for place in places],
            [(self.first + place) % larger for place in places],
        )
