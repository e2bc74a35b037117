"""What P and D say to each other, and how it looks on the wire.

One *session* joins one P rank and one D rank. D dials. Every message travels in an `Envelope` that names the random
incarnations of sender and intended receiver and a sequence number, so that a process which restarted at the same
address never acts on its predecessor's mail, and an overtaken message is dropped (loss is what `Beat` repairs).

Read the messages in the order of a transfer's life: `Hello`, `Reserve`, `Started`, `Commit`; `Beat` keeps both sides
honest, `Revoke` and `Fail` end what did not go well. All of them are idempotent; unknown keys are ignored.
"""

from typing import Annotated, NamedTuple

import msgspec

from contracts.kv_transfer import PROTOCOL_VERSION
from contracts.node_info import Fingerprint, RegionInfo
from kv_connector.errors import ProtocolError


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """Coordinates of a worker in its node."""

    tp: int = 0
    tp_size: int = 1
    pp: int = 0
    pp_size: int = 1


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Both ways: who I am and where my KV lies. D speaks first; P answers with its own `Hello` or a `Refuse`."""

    node: str  # how the logs of the peer should call me
    rank: Rank
    fingerprint: Fingerprint
    regions: list[RegionInfo]


class Refuse(msgspec.Struct, frozen=True, kw_only=True, tag="refuse"):
    """P to D: this pair must not exchange KV, and why. No byte has moved."""

    reason: str


class OpenEpoch(NamedTuple):
    """One epoch that the sender of a `Beat` still counts as open. Epoch 0: watched, nothing reserved."""

    transfer_id: str
    epoch: int


class Introduce(msgspec.Struct, frozen=True, kw_only=True, tag="introduce"):
    """P to D: I do not know you (I have restarted); whatever you had open with my predecessor is lost. Say `Hello`."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """D to P: everything of mine that is open with you. P answers with its own list and repeats what D missed."""

    open: list[OpenEpoch]


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """P to D: the prompt of this transfer is being computed."""

    transfer_id: str
    tokens: int


class Reserve(msgspec.Struct, frozen=True, kw_only=True, tag="reserve"):
    """D to P: write the prompt's KV here. Blocks are scheduler blocks, in prompt order, one list per KV group."""

    transfer_id: str
    epoch: int
    engine: str  # session name of the receiving engine: the fence domain of this epoch
    tokens: int  # prompt length that D wants, tokens
    first_token: int  # D has everything before it; a multiple of the block size
    blocks: list[list[int]]  # destination block ids from `first_token` on; 0: not wanted
    prompt_hash: bytes


class Revoke(msgspec.Struct, frozen=True, kw_only=True, tag="revoke"):
    """D to P: stop writing, or (epoch 0) I need nothing of this transfer. Answered by `Commit` or `Fail`.

    With a `mismatch` it comes after the commit: what was committed is not what arrived. That needs no answer.
    """

    transfer_id: str
    epoch: int
    mismatch: str = ""  # regions and blocks whose digests differ


class Commit(msgspec.Struct, frozen=True, kw_only=True, tag="commit"):
    """P to D: every push of this epoch returned 0 and every wanted block was pushed."""

    transfer_id: str
    epoch: int
    tokens: int
    prompt_hash: bytes
    shards: int = 1  # how many P ranks must commit
    timings_s: dict[str, float] = {}  # seconds since the prompt was first scheduled, by milestone
    pushing_s: float = 0.0  # time in which at least one push was under way
    digests: bytes = b""  # of the pushed blocks, 8 bytes per region in the order of `Hello`; empty: not verified


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag="fail"):
    """P to D: this epoch will not be committed. Dirty: some bytes may still be on their way (E1); fence."""

    transfer_id: str
    epoch: int
    dirty: bool
    reason: str


Body = Hello | Refuse | Introduce | Beat | Started | Reserve | Revoke | Commit | Fail


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What travels in one frame."""

    version: int
    sender: Annotated[int, msgspec.Meta(gt=0)]  # incarnation, 63 random bits
    receiver: Annotated[int, msgspec.Meta(ge=0)]  # who it is meant for; 0 only in a `Hello` to a peer not heard of yet
    seq: Annotated[int, msgspec.Meta(gt=0)]  # grows by one per message of a sender to a session
    body: msgspec.Raw


class Message(NamedTuple):
    """A decoded envelope."""

    sender: int
    receiver: int
    seq: int
    body: Body


_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_bodies = msgspec.msgpack.Decoder(Body)


def encode(message: Message) -> bytes:
    """Return the frame for a message."""
    return _encoder.encode(
        Envelope(
            version=PROTOCOL_VERSION,
            sender=message.sender,
            receiver=message.receiver,
            seq=message.seq,
            body=msgspec.Raw(_encoder.encode(message.body)),
        )
    )


def decode(frame: bytes) -> Message:
    """Parse a frame.

    Raises:
        ProtocolError: not our format, or another protocol version; the message names both versions.
    """
    try:
        envelope = _envelopes.decode(frame)
        if envelope.version != PROTOCOL_VERSION:
            raise ProtocolError(f"the peer speaks protocol {envelope.version}, this node speaks {PROTOCOL_VERSION}")
        return Message(envelope.sender, envelope.receiver, envelope.seq, _bodies.decode(envelope.body))
    except msgspec.MsgspecError as exc:
        raise ProtocolError(f"malformed control message: {exc}") from exc
