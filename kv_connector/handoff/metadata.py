"""What the scheduler side tells the workers in each step, and what they report back.

These travel between vLLM's own processes by pickle; nothing here crosses to a peer (that is `protocol/messages.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from baton.contracts.kv_transfer import SINGLE, Grids
from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.protocol.messages import SampledToken


@dataclass
class RankAddress(KVConnectorHandshakeMetadata):
    """Where a rank is reached, told once at the start."""

    index: int  # in the engine's grid
    address: str  # "tcp://host:port"; empty for one that only dials


class StartedPrompt(NamedTuple):
    """A prompt that is scheduled for the first time."""

    transfer_id: str
    request_id: str
    prompt: Prompt
    group: str = ""  # by which the proxy knows all transfers of one HTTP request; empty: by the transfer's own id
    grids: Grids = SINGLE
    logprobs: int | None = None  # wanted with the first token, which P samples for D; None: D samples it


class Abandoned(NamedTuple):
    """A prompt that will never be scheduled, or not for this transfer."""

    transfer_id: str
    reason: str
    grids: Grids = SINGLE


@dataclass
class PrefillStep:
    """One step on P. Voids come first: the same step may reuse the blocks."""

    voids: list[tuple[str, str]] = field(default_factory=list)  # request id, reason
    abandoned: list[Abandoned] = field(default_factory=list)
    started: list[StartedPrompt] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)  # finished requests whose blocks wait for `finished_sending`
    unfetched: list[str] = field(default_factory=list)  # of these, given up unless a decode rank has reserved


class Watched(NamedTuple):
    """A request that wants KV from the ranks at `peers`, stage by stage."""

    transfer_id: str
    request_id: str
    peers: Sequence[str]
    grids: Grids = SINGLE


class Reserved(NamedTuple):
    """Blocks that P shall write to."""

    request_id: str
    epoch: int
    wish: BlockReservation


@dataclass
class DecodeStep:
    """One step on D."""

    watched: list[Watched] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)  # request ids


@dataclass
class Step(KVConnectorMetadata):
    """One step, for the sides that the engine has."""

    prefill: PrefillStep | None = None
    decode: DecodeStep | None = None


class Ending(NamedTuple):
    """How a transfer ended on one D worker. P's clock is another: its milestones are never mixed with ours."""

    at_s: float  # COMMIT received, or given up; this machine's monotonic clock
    reserve_sent_s: float | None  # likewise; None if RESERVE never went out
    committed: bool
    timings_s: Mapping[str, float]  # P's milestones since it scheduled the prompt; empty unless committed
    pushing_s: float  # on P
    cached_tokens: int = 0  # of the prompt, in P's prefix cache; 0 unless committed


@dataclass
class DecodeReport(KVConnectorWorkerMetadata):
    """What happened on one D worker since its last report."""

    started: set[str] = field(default_factory=set)  # transfer ids whose prompt is being computed
    failed: dict[str, str] = field(default_factory=dict)  # request id → reason: its KV will not come
    closed: list[str] = field(default_factory=list)  # request ids whose blocks no peer writes to any more
    endings: dict[str, Ending] = field(default_factory=dict)  # by request id, for timings alone
    first_tokens: dict[str, SampledToken] = field(default_factory=dict)  # by request id; as far as P has said

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "DecodeReport":
        assert isinstance(other, DecodeReport)  # all workers of a node run this connector
        return DecodeReport(
            started=self.started | other.started,
            failed=self.failed | other.failed,
            closed=self.closed + other.closed,
            first_tokens=self.first_tokens | other.first_tokens,
            endings={
                request_id: max(  # all is here when the last rank says so
                    self.endings.get(request_id, ending), ending, key=lambda known: known.at_s
                )
                for request_id, ending in (self.endings | other.endings).items()
            },
        )

    def __bool__(self) -> bool:
        return bool(self.started or self.failed or self.closed or self.endings or self.first_tokens)
