"""Scenes, and the few names that their sides share."""

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.node_info import Fingerprint
from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.gather import Gather
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.pushing import TransferLayout
from baton.kv_connector.protocol.messages import Hello, Rank, SampledToken
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from baton.kv_connector.telemetry.refusals import Refused
from baton.kv_connector.worker_side.sides import WorkerSides

# A place is where one rank's process runs and the control address of that process, the same after a restart. To each
# the incarnation of its first process; those that follow it there count up. N: nodes that send and receive.
FIRST = {"P": 11, "D": 21, "P1": 31, "D1": 41, "N": 51, "N1": 61}
BLOCK_TOKENS = 16
LONG_AGO = -1e9  # s
REASON = "some reason"
NEWEST = 1  # sequence number

NAMES = ("A", "B")  # of transfers


class Settings(TransferConfig):
    """Not crowded by one dirty epoch: the fence has to wait for healthy ones, or for its time."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A state names them."""
        return "SETTINGS" if self is SETTINGS else super().__reduce_ex__(protocol)


SETTINGS = Settings()

Event: TypeAlias = tuple[Any, ...]  # what happens at one side: name, then arguments
Handle: TypeAlias = tuple[str, int, int]  # of a push: flow, layer, which of the wanted blocks


class Label(NamedTuple):
    """One step of the world, for traces and for `rest.py`."""

    where: str  # a place, net, write
    what: str
    arguments: tuple[Any, ...]


def label(where: str, what: str, *arguments: Any) -> Label:
    return Label(where, what, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    transfers: int = 1
    prefill_ranks: int = 1  # of the prefill node; a decode rank takes a part of its KV from each
    decode_ranks: int = 1  # of the decode node; a prefill rank has something for each
    pool: int = 0  # blocks of either allocator, used again when given back; 0: one for each transfer, see `block_for`
    layers: int = 1
    crashes_p: int = 1  # each followed by a restart or not; of several ranks the last one may crash
    crashes_d: int = 1
    asks_again: bool = True  # a restarted D may also run what its predecessor had asked for, with the same epochs
    cut_off: bool = True  # a live peer may be silent for so long that it is taken for dead; if not, none may crash
    other_prompt: bool = False  # the last prefill rank sees another prompt
    short: bool = False  # the last prefill rank has nothing that its decode rank wants
    zeroes_first: bool = False  # P's device zeroes the blocks of a preempted prompt before P's connector hears of it
    verify: bool = False  # commits carry digests, and a byte on D may flip once
    samples: bool = False  # the last prefill rank samples the first token, and commits carry it
    engine_names_return: bool = False  # a restarted D gives its engines the names that they had before
    left_out: frozenset[str] = frozenset()  # events of the sides

    @property
    def names(self) -> tuple[str, ...]:
        """Transfer ids."""
        return NAMES[: self.transfers]

    @property
    def prefill(self) -> tuple[str, ...]:
        return ("P", "P1")[: self.prefill_ranks]

    @property
    def decode(self) -> tuple[str, ...]:
        """Places of the decode ranks."""
        return ("D", "D1")[: self.decode_ranks]

    @property
    def places(self) -> tuple[str, ...]:
        return (*self.prefill, *self.decode)

    @property
    def ruled_out(self) -> frozenset[str]:
        """Names of the sides' events that do not happen."""
        return self.left_out if self.cut_off else self.left_out | {"silence", "unanswered"}

    def flow(self, name: str, source: str, target: str) -> str:
        """Return the id of the flow of a transfer between two places."""
        alone = len(self.places) == 2
        return name if alone else f"{name}/{self.prefill.index(source)}-{self.decode.index(target)}"

    def ends(self, flow: str) -> tuple[str, str]:
        """Return the places that a flow goes from and to."""
        pairs = ((p, d) for p in self.prefill for d in self.decode)
        return next(pair for pair in pairs if flow in [self.flow(name, *pair) for name in self.names])

    def terms(self, place: str) -> TransferLayout:
        """What the prefill rank at a place has in common with every decode rank."""
        layers = range(0 if self.short and place == self.prefill[-1] else self.layers)
        return TransferLayout(layers, regions=layers, shares=len(layers))

    @property
    def blocks(self) -> range:
        """Block ids on either side."""
        return range(1, 1 + (self.pool or self.transfers))

    def block_for(self, name: str, taken: set[int]) -> int:
        """Return the block that an allocator gives to a transfer while others are taken; 0 if there is none.

        With a pool: the lowest one that is free. (Free blocks are alike: no write is under way to any, or a violation
        is one step away.) Without: one of its own. That is what a pool of as many blocks as transfers comes to but for
        the names of the blocks, which the machines only pass on: a write into a block that has been given back is a
        violation for any next owner, and what is read from a block that P let go is garbage for any reader.
        """
        if not self.pool:
            return self.names.index(name) + 1
        return min(set(self.blocks) - taken, default=0)


class Machines(NamedTuple):
    """The classes that are explored."""

    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer
    fan_out: type[FanOut] = FanOut
    gather: type[Gather] = Gather
    scheduler_sides: type[SchedulerSides] = SchedulerSides
    worker_sides: type[WorkerSides] = WorkerSides
    prefill_scheduler: type[PrefillScheduler] = PrefillScheduler
    decode_scheduler: type[DecodeScheduler] = DecodeScheduler


class Submitted(NamedTuple):
    """A push that the machine has allowed: the write itself comes later."""

    handle: Handle
    owner: str  # transfer
    engine: str
    source: int  # block on P
    target: int  # block on D
    layer: int


class Numbers:
    """Sequence numbers of what is sent: a message that arrives is always taken for the newest, see `anything.py`."""

    def __reduce__(self) -> str:
        return "NUMBERS"

    def __next__(self) -> int:
        return NEWEST


NUMBERS = Numbers()


def place_of(incarnation: int) -> str:
    return next(place for place, first in FIRST.items() if first // 10 == abs(incarnation) // 10)


def first_token(name: str) -> SampledToken:
    """Return the token that is sampled after a transfer's prompt."""
    return SampledToken(id=1 + NAMES.index(name))


def prompt_hash(name: str) -> bytes:
    """Return what stands for the prompt of a transfer."""
    return f"prompt {name}".encode()


def right(name: str) -> str:
    """Return the content of a block that holds this transfer's KV."""
    return f"right {name}"


def HELLO() -> Hello:  # noqa: N802  # a constant, in the shape in which the machines ask for it
    """An introduction; what it says is judged elsewhere."""
    fingerprint = Fingerprint(
        weights="", dtype="", kv_cache_dtype="", quantization="", rope="", attention="", block_size_tokens=16
    )
    return Hello(node="", rank=Rank(), fingerprint=fingerprint, regions=[])


def uncounted(kind: Refused) -> None:
    """Refusals are not counted."""


def verify_none(transfer_id: str) -> bool:
    """No commit carries digests."""
    return False


def verify_all(transfer_id: str) -> bool:
    """Every commit carries digests."""
    return True


def digests(content: list[str]) -> bytes:
    """What stands for the digests of a block, per layer."""
    return ",".join(content).encode()


def accept_all(hello: Hello) -> str:
    """Judge no introduction wanting."""
    return ""
