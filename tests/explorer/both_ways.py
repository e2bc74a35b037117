"""Two nodes that both send and receive (decision 63): what one transfer brings to a node, another one may take from there.

Node N has the control address and the engines of both of its sides, as node N1 has; each is one process, see node.py.
"""

from dataclasses import dataclass
from typing import NamedTuple

from baton.contracts.kv_transfer import Role
from tests.explorer.scene import BLOCK_TOKENS, Scene

A, B = "a" * 32, "b" * 32  # ids of transfers: of a prompt from N to N1; from N1 to N
PROMPT = tuple(range(BLOCK_TOKENS))
OTHER_PROMPT = tuple(range(100, 100 + BLOCK_TOKENS))
ANSWER = tuple(range(200, 209))  # its last token's KV is not sent: so it fills half a block
OTHER_ANSWER = tuple(range(300, 309))


class Leg(NamedTuple):
    """One request that a node is sent."""

    transfer: str
    role: Role
    prompt: tuple[int, ...]
    contents: tuple[str, ...]  # of its blocks when its KV is there
    start: tuple[int, ...] = ()  # tokens that its answer has, and whose KV is sent too
    after: str = ""  # the request of this node that has begun before, see `Node`

    @property
    def request_id(self) -> str:
        return f"{self.transfer[0]} {'sent' if self.role == 'prefill' else 'received'}"


# What may happen at any time to any request: together with all the rest they are too many for one scene.
ASIDE = frozenset({"cancel", "abort", "preempt", "evict"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWays(Scene):
    """A prompt's KV goes from N to N1, and that of the prompt and its answer back from there."""

    transfers: int = 2
    asks_again: bool = False
    crashes_p: int = 0  # of N
    crashes_d: int = 0  # of N1
    cut_off: bool = False
    left_out: frozenset[str] = ASIDE
    pools: tuple[int, int] = (3, 3)  # blocks of either node
    other_answer: bool = False  # the proxy tells N another answer than N1
    lags: bool = False  # a node's scheduler and device are behind; if not, they do at once what there is to do
    roles: tuple[Role, Role] = ("prefill", "decode")

    @property
    def names(self) -> tuple[str, ...]:
        return (A, B)[: self.transfers]

    @property
    def prefill(self) -> tuple[str, ...]:
        return ("N",)

    @property
    def decode(self) -> tuple[str, ...]:
        return ("N1",)

    def role(self, place: str) -> Role:
        return self.roles[self.places.index(place)]

    def blocks_of(self, place: str) -> int:
        return self.pools[self.places.index(place)]

    def ends(self, flow: str) -> tuple[str, str]:
        return ("N", "N1") if flow == A else ("N1", "N")

    def legs(self, place: str) -> tuple[Leg, ...]:
        """Return the requests that a node is sent, each once."""
        prompt, whole = ("prompt",), ("prompt", "answer")
        if place == "N":
            received = Leg(B, "decode", PROMPT, whole, ANSWER, after="a sent")
            if self.other_answer:
                received = received._replace(start=OTHER_ANSWER, contents=("prompt", "other answer"))
            return Leg(A, "prefill", PROMPT, prompt), received
        return Leg(A, "decode", PROMPT, prompt), Leg(B, "prefill", PROMPT, whole, ANSWER, after="a received")

    def is_answer(self, transfer: str) -> bool:
        return transfer == B


@dataclass(frozen=True, slots=True, kw_only=True)
class FullOfEachOther(BothWays):
    """Each node has a prompt for the other one, and no block but that prompt's."""

    pools: tuple[int, int] = (1, 1)
    roles: tuple[Role, Role] = ("decode", "decode")

    def legs(self, place: str) -> tuple[Leg, ...]:
        there, back = ("prompt",), ("other prompt",)
        roles: tuple[Role, Role] = ("prefill", "decode") if place == "N" else ("decode", "prefill")
        return Leg(A, roles[0], PROMPT, there), Leg(B, roles[1], OTHER_PROMPT, back)

    def is_answer(self, transfer: str) -> bool:  # neither
        return False
