"""What P and D say to each other, and how it looks on the wire.

One *session* joins one P rank and one D rank. D dials. Every message travels in an `Envelope` that names the random
incarnations of sender and intended receiver and a sequence number, so that a process which restarted at the same
address never acts on its predecessor's mail, and an overtaken message is dropped (loss is what `Beat` repairs).

Read the messages in the order of a transfer's life: `Hello`, `Reserve`, `Started`, `Commit`; `Beat` keeps both sides
honest, `Revoke` and `Fail` end what did not go well. All of them are idempotent; unknown keys are ignored.

Every text, list and number has a bound, far beyond what any deployment needs: what a peer sends costs no more memory
than these allow, and the decoder refuses the rest before anybody sees it.
"""

from typing import Annotated, NamedTuple

import msgspec

from baton.contracts.kv_transfer import PROTOCOL_VERSION
from baton.contracts.node_info import Fingerprint, Name, RegionInfo
from baton.kv_connector.errors import ProtocolError, VersionError
from baton.kv_connector.protocol.verification import DIGEST_BYTES

MAX_OPEN = 8_192  # transfers between one P rank and one D rank; a D that has more computes the rest itself
MAX_BLOCKS = 262_144  # in one reservation and KV group: a prompt of 4 million tokens
MAX_GROUPS = 16  # KV groups in a reservation
MAX_REASON_CHARS = 2_000
MAX_REGIONS = 4_096
MAX_LOGPROBS = 1_024  # with one token

_MAX_INT = (1 << 63) - 1
Incarnation = Annotated[int, msgspec.Meta(gt=0, le=_MAX_INT)]
TransferId = Annotated[str, msgspec.Meta(max_length=64)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
MAX_TOKEN = (1 << 31) - 1
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN)]
BlockId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)]
Digest = Annotated[bytes, msgspec.Meta(max_length=64)]
Coordinate = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Seconds = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]  # finite, and a number


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """Coordinates of a worker in its node."""

    tp: Coordinate = 0
    tp_size: Coordinate = 1
    pp: Coordinate = 0
    pp_size: Coordinate = 1


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Both ways: who I am and where my KV lies. D speaks first; P answers with its own `Hello` or a `Refuse`."""

    node: Name  # how the logs of the peer should call me
    rank: Rank
    fingerprint: Fingerprint
    regions: Annotated[list[RegionInfo], msgspec.Meta(max_length=MAX_REGIONS)]


class Refuse(msgspec.Struct, frozen=True, kw_only=True, tag="refuse"):
    """P to D: this pair must not exchange KV, and why. No byte has moved."""

    reason: Reason


class OpenEpoch(NamedTuple):
    """One epoch that the sender of a `Beat` still counts as open. Epoch 0: watched, nothing reserved."""

    transfer_id: TransferId
    epoch: Epoch


class Introduce(msgspec.Struct, frozen=True, kw_only=True, tag="introduce"):
    """P to D: I do not know you (I have restarted); whatever you had open with my predecessor is lost. Say `Hello`."""


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """D to P: everything of mine that is open with you. P answers with its own list and repeats what D missed."""

    open: Annotated[list[OpenEpoch], msgspec.Meta(max_length=MAX_OPEN)]


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """P to D: the prompt of this transfer is being computed."""

    transfer_id: TransferId
    tokens: Tokens


class Reserve(msgspec.Struct, frozen=True, kw_only=True, tag="reserve"):
    """D to P: write the prompt's KV here. Blocks are scheduler blocks, in prompt order, one list per KV group."""

    transfer_id: TransferId
    epoch: Epoch
    engine: Name  # session name of the receiving engine: the fence domain of this epoch
    tokens: Tokens  # prompt length that D wants, tokens
    from_token: Tokens = msgspec.field(name="first_token")  # D has everything before it; a multiple of the block size
    # destination block ids from `from_token` on; 0: not wanted
    blocks: Annotated[
        list[Annotated[list[BlockId], msgspec.Meta(max_length=MAX_BLOCKS)]], msgspec.Meta(max_length=MAX_GROUPS)
    ]
    prompt_hash: Digest


class Revoke(msgspec.Struct, frozen=True, kw_only=True, tag="revoke"):
    """D to P: stop writing, or (epoch 0) I need nothing of this transfer. Answered by `Commit` or `Fail`.

    With a `mismatch` it comes after the commit: what was committed is not what arrived. That needs no answer.
    """

    transfer_id: TransferId
    epoch: Epoch
    mismatch: Reason = ""  # regions and blocks whose digests differ


class SampledToken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A token that a node has generated, with the log probabilities that the request asks for: its own first, then the best."""

    id: TokenId
    logprob_ids: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=MAX_LOGPROBS)] = ()  # empty: none are asked for
    logprobs: Annotated[tuple[float, ...], msgspec.Meta(max_length=MAX_LOGPROBS)] = ()
    rank: TokenId = 0  # of the token itself in the vocabulary, by log probability


class Commit(msgspec.Struct, frozen=True, kw_only=True, tag="commit", gc=False):
    """P to D: every push of this epoch returned 0 and every wanted block was pushed."""

    transfer_id: TransferId
    epoch: Epoch
    tokens: Tokens
    prompt_hash: Digest
    shards: Coordinate = 1  # how many P ranks must commit, as far as P knows
    # pairs of region and KV head that were pushed; over all P ranks it must be what D's rank has. 0: not counted
    shares: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    cached_tokens: Tokens = 0  # of the prompt, that P had in its prefix cache: for `usage`
    # seconds since the prompt was first scheduled, by milestone
    timings_s: Annotated[dict[Annotated[str, msgspec.Meta(max_length=32)], Seconds], msgspec.Meta(max_length=64)] = {}
    pushing_s: Seconds = 0.0  # time in which at least one push was under way
    # of the pushed blocks, 8 bytes per region in the order of `Hello`; empty: not verified
    digests: Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES * MAX_REGIONS)] = b""
    first: SampledToken | None = None  # the answer's first token, which P has sampled; None: D samples it


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag="fail", gc=False):
    """P to D: this epoch will not be committed. Dirty: some bytes may still be on their way (E1); fence."""

    transfer_id: TransferId
    epoch: Epoch
    dirty: bool
    reason: Reason


Body = Hello | Refuse | Introduce | Beat | Started | Reserve | Revoke | Commit | Fail


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What travels in one frame."""

    version: int
    sender: Incarnation  # 63 random bits
    # who it is meant for; 0 only in a `Hello` to a peer not heard of yet
    receiver: Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT)]
    seq: Annotated[int, msgspec.Meta(gt=0, le=_MAX_INT)]  # grows by one per message of a sender to a session
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
    """Return the frame for a message; a reason that is too long for the peer is cut."""
    body = message.body
    if isinstance(body, Refuse | Fail) and len(body.reason) > MAX_REASON_CHARS:
        body = msgspec.structs.replace(body, reason=body.reason[: MAX_REASON_CHARS - 1] + "…")
    return _encoder.encode(
        Envelope(
            version=PROTOCOL_VERSION,
            sender=message.sender,
            receiver=message.receiver,
            seq=message.seq,
            body=msgspec.Raw(_encoder.encode(body)),
        )
    )


def decode(frame: bytes) -> Message:
    """Parse a frame.

    Raises `ProtocolError` if it is malformed or a value is out of bounds, `VersionError` for another protocol version.
    """
    try:
        envelope = _envelopes.decode(frame)
        if envelope.version != PROTOCOL_VERSION:
            raise VersionError(f"the peer speaks protocol {envelope.version}, this node speaks {PROTOCOL_VERSION}")
        return Message(envelope.sender, envelope.receiver, envelope.seq, _bodies.decode(envelope.body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:  # the last for what is nested too deeply
        raise ProtocolError(f"malformed control message: {exc}") from exc
