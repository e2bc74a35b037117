"""Frames: what goes out comes back, and nothing else is believed."""

import msgspec
import pytest

from contracts.kv_transfer import PROTOCOL_VERSION
from contracts.node_info import Fingerprint, RegionInfo
from kv_connector.errors import ProtocolError
from kv_connector.protocol import (
    Beat,
    Body,
    Commit,
    Envelope,
    Fail,
    Hello,
    Introduce,
    Message,
    OpenEpoch,
    Rank,
    Refuse,
    Reserve,
    Revoke,
    Started,
    decode,
    encode,
)

FINGERPRINT = Fingerprint(
    weights="w",
    dtype="float32",
    kv_cache_dtype="auto",
    quantization="",
    rope="r",
    attention="cpu",
    block_size_tokens=16,
)
REGION = RegionInfo(name="k", layer=0, base_addr=1 << 47, block_bytes=64, stride_bytes=64, num_blocks=9)
BODIES: list[Body] = [
    Hello(node="d", rank=Rank(tp=1, tp_size=2), fingerprint=FINGERPRINT, regions=[REGION]),
    Refuse(reason="other weights"),
    Introduce(),
    Beat(open=[OpenEpoch("t", 1), OpenEpoch("u", 0)]),
    Started(transfer_id="t", tokens=40),
    Reserve(transfer_id="t", epoch=1, engine="h:1", tokens=40, first_token=16, blocks=[[2, 0]], prompt_hash=b"\0\xff"),
    Revoke(transfer_id="t", epoch=1),
    Commit(
        transfer_id="t", epoch=1, tokens=40, prompt_hash=b"h", timings_s={"commit": 0.5}, pushing_s=0.25, digests=b"d"
    ),
    Fail(transfer_id="t", epoch=1, dirty=True, reason="a push failed"),
]


def frame(body: object, **envelope: object) -> bytes:
    """Make a frame of anything."""
    fields = {"version": PROTOCOL_VERSION, "sender": 1, "receiver": 2, "seq": 3}
    return msgspec.msgpack.encode(fields | {"body": body} | envelope)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_message_survives_the_wire(body: Body) -> None:
    """Every kind of message comes out as it went in."""
    message = Message(sender=2**63 - 1, receiver=0, seq=7, body=body)

    assert decode(encode(message)) == message


def test_unknown_fields_are_ignored() -> None:
    """A newer peer of the same protocol version may say more."""
    body = {"type": "revoke", "transfer_id": "t", "epoch": 1, "mood": "sour"}

    assert decode(frame(body, colour="blue")).body == Revoke(transfer_id="t", epoch=1)


def test_another_protocol_version_is_named() -> None:
    """The operator reads both versions; the body of another version is not looked at."""
    with pytest.raises(ProtocolError, match=f"protocol 99, this node speaks {PROTOCOL_VERSION}"):
        decode(frame({"type": "of tomorrow"}, version=99))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xc1",
        b"not msgpack at all",
        encode(Message(1, 2, 3, Introduce()))[:-1],
        frame({"type": "of tomorrow"}),
        frame({"type": "revoke", "transfer_id": "t"}),
        frame({"type": "revoke", "transfer_id": "t", "epoch": "one"}),
        frame({"type": "introduce"}, sender=0),
        frame({"type": "introduce"}, sender=-1),
        frame({"type": "introduce"}, receiver=-1),
        frame({"type": "introduce"}, seq=0),
        msgspec.msgpack.encode([1, 2, 3]),
    ],
)
def test_a_malformed_frame_is_an_error(bad: bytes) -> None:
    """Whatever arrives, the answer is one kind of exception."""
    with pytest.raises(ProtocolError, match="malformed"):
        decode(bad)


def test_an_envelope_names_both_processes() -> None:
    """What the session checks is outside the body, which is parsed only afterwards."""
    envelope = msgspec.msgpack.decode(encode(Message(5, 6, 7, Introduce())), type=Envelope)

    assert (envelope.version, envelope.sender, envelope.receiver, envelope.seq) == (PROTOCOL_VERSION, 5, 6, 7)
