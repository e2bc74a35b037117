"""What D's scheduler knows of a request that is part of a transfer."""

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from baton.kv_connector.protocol.messages import SampledToken

if TYPE_CHECKING:
    from vllm.v1.request import Request


class State(IntEnum):
    """Where such a request stands; see `DecodeScheduler`."""

    WAITING = 0
    RESERVED = 1
    SETTLED = 2


@dataclass(slots=True)
class Tracked:
    """A request that is part of a transfer."""

    request: "Request"
    transfer_id: str
    named: str  # in the request's parameters: the same, or that of all prompts of one HTTP request
    peer: str
    prompt_hash: bytes
    adapter: str  # its name when the prompt was hashed
    since: float  # s, monotonic
    tokens: int  # of the prompt, and of the answer as far as the transfer has its KV
    wants_first: bool  # token: P samples it, and the request starts with it
    kv_only: bool = False  # nothing is to be computed in the place of KV that does not come
    state: State = State.WAITING
    started: bool = False  # P computes the prompt
    receive_failed: bool = False  # as some rank has reported
    external_tokens: int = 0  # reserved for
    cached_tokens: int = 0  # of the prompt, that P had cached, as far as it said
    first: SampledToken | None = None  # as P has sampled it, as far as it said
