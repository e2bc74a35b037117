"""`/baton/probe`: what `baton doctor` may ask of a node, and what the node answers.

`GET` describes the node's machine. `POST` has the node try one thing out: one `Question` goes in, and the answer that
stands beside it in `ANSWERS` comes out. Nothing of it touches the engine that serves.
"""

from types import MappingProxyType
from typing import Annotated

import msgspec

MIB = 1 << 20
SIZE_BYTES = 32 * MIB  # of the memory that a probe pushes from and into
MAX_IDLE_S = 3600.0
MAX_RECEIVE_S = 2 * MAX_IDLE_S
UNLIMITED = -1

Text = Annotated[str, msgspec.Meta(max_length=512)]


class RdmaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One card in `/sys/class/infiniband`."""

    name: str
    active: bool  # whether one of its ports is


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's process finds where it runs."""

    name: str  # equal on two nodes exactly if one's loopback address is the other's
    data_host: str  # address of the transfer engine, as peers reach it
    protocol: str  # transport of the transfer engine
    open_files: int  # that a process may have, at most; UNLIMITED
    locked_bytes: int  # of memory that a process may pin; UNLIMITED
    rdma_devices: list[RdmaDevice]


class Dial(msgspec.Struct, frozen=True, kw_only=True, tag="dial"):
    """Decode node: make a control connection to a prefill node's address, with the cluster secret, and hang up."""

    address: Text  # "tcp://host:port"


class Greet(msgspec.Struct, frozen=True, kw_only=True, tag="greet"):
    """Prefill node: ask a decode node's transfer engine, one of those that serve, for its description."""

    session: Text  # "host:port"


class Receive(msgspec.Struct, frozen=True, kw_only=True, tag="receive"):
    """Decode node: put up a transfer engine with memory of its own, for so long at most."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_RECEIVE_S)]


class Release(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """Decode node: take it down again."""

    session: Text


class Push(msgspec.Struct, frozen=True, kw_only=True, tag="push"):
    """Prefill node: push into the memory of a `Receiving`, and again after a pause."""

    session: Text
    address: Annotated[int, msgspec.Meta(ge=0)]
    size_bytes: Annotated[int, msgspec.Meta(ge=MIB, le=SIZE_BYTES)]
    idle_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_IDLE_S)]


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """Whether something answered as it should."""

    problem: str = ""  # why it did not; "" if it did
    refused: bool = False  # something is there, and does not want us


class Receiving(msgspec.Struct, frozen=True, kw_only=True):
    """Where a prefill node pushes to."""

    session: str
    address: int
    size_bytes: int


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there was something to take down."""

    found: bool


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """How the pushes went, as far as they got."""

    problem: str = ""  # why a push failed; "" if none did
    first_s: float | None = None  # the first small push, with all that a connection takes
    latency_s: float | None = None  # a small push, median of several
    bytes_per_s: float | None = None
    after_idle_s: float | None = None  # a small push after the pause


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's transfer engine is, and so a probe's."""

    host: str
    protocol: str


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has a process of its own do: see `kv_connector/engine/probe.py`."""

    place: Place
    what: Receive | Push


Question = Dial | Greet | Receive | Release | Push
Answer = Reached | Receiving | Released | Pushed

# Question → answer.
ANSWERS = MappingProxyType({Dial: Reached, Greet: Reached, Receive: Receiving, Release: Released, Push: Pushed})
