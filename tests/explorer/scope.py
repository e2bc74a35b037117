"""Bounds of an exploration, and the few names that its two sides share."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from contracts.node_info import Fingerprint
from kv_connector.protocol import Hello, Rank

TRANSFER = "t"
REQUEST_P, REQUEST_D = "p-request", "d-request"
PROMPT_HASH = b"prompt"
PEER = "P"  # control address of the prefill node, the same after a restart
FIRST_PREFILL, FIRST_DECODE = 11, 21  # incarnations of the first process of each side; then counting up
LONG_AGO = -1e9  # s

Event: TypeAlias = tuple[Any, ...]  # what happens at one side: name, then arguments


class Label(NamedTuple):
    """One step of the world, for traces and for `rest.py`."""

    where: str  # P, D, net, write
    what: str
    arguments: tuple[Any, ...]


def label(where: str, what: str, *arguments: Any) -> Label:
    """Make a label."""
    return Label(where, what, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much may go wrong in one run."""

    faults: int = 3  # of all kinds together
    losses: int = 2  # a message that is overtaken by a newer one counts as lost
    duplicates: int = 1
    silences: int = 1  # per side: a peer that is alive is taken for dead
    beat_among: int = 0  # a beat is sent while at most so many other messages are under way
    crashes_p: int = 1  # each followed by a restart or not
    crashes_d: int = 1
    asks_again: bool = True  # a restarted D runs the same transfer once more, with the epoch of its predecessor
    layers: int = 1
    other_prompt: bool = False  # the two nodes see different prompts
    verify: bool = False  # commits carry digests, and a byte on D may flip once
    engine_names_return: bool = False  # a restarted D gives its engines the names that they had before


class Submitted(NamedTuple):
    """A push that the machine has allowed: the write itself comes later."""

    handle: int
    engine: str
    layer: int


class Numbers:
    """Sequence numbers of what one event sends; `network.py` puts them behind all that is under way."""

    def __init__(self) -> None:
        self.last = 1_000

    def __next__(self) -> int:
        self.last += 1
        return self.last


def HELLO() -> Hello:  # noqa: N802  # a constant, in the shape in which the machines ask for it
    """An introduction; what it says is judged elsewhere."""
    fingerprint = Fingerprint(
        weights="", dtype="", kv_cache_dtype="", quantization="", rope="", attention="", block_size_tokens=16
    )
    return Hello(node="", rank=Rank(), fingerprint=fingerprint, regions=[])


def verify_all(transfer_id: str) -> bool:
    """Every commit carries digests."""
    return True


def digests(content: list[str]) -> bytes:
    """What stands for the digests of a block, per layer."""
    return ",".join(content).encode()


def accept_all(hello: Hello) -> str:
    """Judge no introduction wanting."""
    return ""
