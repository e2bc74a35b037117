"""What one mock is, chosen at its start, and what it counted."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from baton.contracts.kv_transfer import Role

MODEL: Final = "mock"
MAX_MODEL_LEN_TOKENS: Final = 1 << 17


class Fault(StrEnum):
    """What is done to a request instead of, or in the middle of, a good answer."""

    NONE = ""
    STATUS = "status"  # another status, with an error in OpenAI's shape
    DROP = "drop"  # the connection is closed without an answer
    STALL = "stall"  # the answer stops coming; the connection stays
    CUT = "cut"  # the connection is closed in the middle of the answer
    EMPTY = "empty"  # 200 and an empty body


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSetting:
    """Which fault, and whom it meets."""

    fault: Fault = Fault.NONE
    status: int = 500  # of `STATUS`
    after_tokens: int = 1  # of a stream that is cut or stalled, sent before; 0: not even a head
    times: int = 0  # so many of the next requests; 0: all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one mock engine."""

    role: Role
    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens: int = 16  # where a request does not say how many
    chunk_bytes: int = 0  # of each event, padded; 0: as it comes
    tick_s: float = 0.001  # of the wheel: a delay ends with a tick
    fault: FaultSetting = field(default_factory=FaultSetting)


@dataclass(slots=True)
class Counts:
    """What the mock has done since its start."""

    requests: int = 0  # that generate, of whatever outcome
    handed_over: int = 0  # of them: with a prompt's KV to give or to take
    alone: int = 0  # of them: whole prompts without a hand-over
    refused: int = 0  # with a 4xx of ours
    faulted: int = 0
    completed: int = 0
    cancelled: int = 0  # whose connection ended before their answer
    chunks: int = 0  # of streams, written
    cancels: int = 0  # transfers that the proxy cancelled
