"""Frames: what goes out comes back, and nothing else is believed."""

import msgspec
import pytest

from baton.contracts.kv_transfer import PROTOCOL_VERSION
from baton.kv_connector.control.sockets import MAX_PAYLOAD_BYTES
from baton.kv_connector.errors import ProtocolError, VersionError
from baton.kv_connector.protocol.messages import (
    MAX_BLOCKS,
    MAX_OPEN,
    MAX_REASON_CHARS,
    Beat,
    Body,
    Commit,
    Fail,
    Introduce,
    Message,
    OpenEpoch,
    Refuse,
    Reserve,
    Revoke,
    decode,
    encode,
)
from tests.support.golden_wire.examples import BODIES, FINGERPRINT, REGION


def frame(body: object, **envelope: object) -> bytes:
    fields = {"version": PROTOCOL_VERSION, "sender": 1, "receiver": 2, "seq": 3}
    return msgspec.msgpack.encode(fields | {"body": body} | envelope)


EARLY = Commit(transfer_id="t", epoch=1, tokens=1, prompt_hash=b"", timings_s={"reserved": -0.5, "commit": 2.0})


@pytest.mark.parametrize("body", [*BODIES.values(), EARLY], ids=[*BODIES, "reserved before the prompt"])
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
    with pytest.raises(VersionError, match=f"protocol 99, this node speaks {PROTOCOL_VERSION}"):
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
        *(frame({"type": "introduce"}, **{field: 1 << 63}) for field in ("sender", "receiver", "seq")),
        frame({"type": "refuse", "reason": "secret"}).replace(
            b"secret", b"\xe3\x28\xff\xc0\x80!"
        ),  # regression: no text
        msgspec.msgpack.encode([1, 2, 3]),
    ],
)
def test_a_malformed_frame_is_an_error(bad: bytes) -> None:
    """Whatever arrives, the answer is one kind of exception."""
    with pytest.raises(ProtocolError, match="malformed"):
        decode(bad)


def frame_of(kind: str, **fields: object) -> bytes:
    """A frame with one of `BODIES`, some of its fields replaced."""
    plain = next(msgspec.to_builtins(body) for body in BODIES.values() if type(body).__name__ == kind)
    return frame(plain | fields)


NAN, INFINITE = float("nan"), float("inf")
OUT_OF_BOUNDS = [
    ("Started", {"transfer_id": "x" * 65}),
    ("Started", {"tokens": -1}),
    ("Started", {"tokens": 1 << 40}),
    ("Reserve", {"epoch": -1}),
    ("Reserve", {"epoch": 1 << 63}),
    ("Reserve", {"engine": "h" * 300}),
    ("Reserve", {"first_token": -16}),
    ("Reserve", {"prompt_hash": bytes(65)}),
    ("Reserve", {"blocks": [[-1]]}),
    ("Reserve", {"blocks": [[1 << 31]]}),
    ("Reserve", {"blocks": [[1] * (MAX_BLOCKS + 1)]}),
    ("Reserve", {"blocks": [[]] * 17}),
    ("Beat", {"open": [["t", -1]]}),
    ("Beat", {"open": [["t", 1]] * (MAX_OPEN + 1)}),
    ("Beat", {"open": [["t"]]}),
    ("Fail", {"reason": "x" * (MAX_REASON_CHARS + 1)}),
    ("Refuse", {"reason": "x" * (MAX_REASON_CHARS + 1)}),
    ("Commit", {"timings_s": {"commit": NAN}}),
    ("Commit", {"timings_s": {"commit": INFINITE}}),
    ("Commit", {"timings_s": {"commit": -1e300}}),
    ("Commit", {"timings_s": {"x" * 33: 0.0}}),
    ("Commit", {"timings_s": {str(i): 0.0 for i in range(65)}}),
    ("Commit", {"shards": 1 << 20}),
    ("Hello", {"node": "x" * 300}),
    ("Hello", {"rank": {"tp": -1}}),
    ("Hello", {"regions": [msgspec.to_builtins(REGION)] * 4_097}),
    ("Hello", {"regions": [msgspec.to_builtins(REGION) | {"name": "x" * 300}]}),
    ("Hello", {"fingerprint": msgspec.to_builtins(FINGERPRINT) | {"weights": "x" * 600}}),
]


@pytest.mark.parametrize(("kind", "fields"), OUT_OF_BOUNDS)
def test_what_no_deployment_needs_is_malformed(kind: str, fields: dict[str, object]) -> None:
    """Bounds of texts, lists and numbers: a peer cannot make us keep more than they allow, or count with nonsense."""
    with pytest.raises(ProtocolError, match="malformed"):
        decode(frame_of(kind, **fields))


@pytest.mark.parametrize(
    "tail",
    [
        b"\x91" * 100_000,  # lists in lists
        b"\x81\xa1a" * 100_000,  # maps in maps
        b"\xdd\xff\xff\xff\xff",  # a list, a map, a text, of four billion
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\x82\xa4type\xa4beat\xa4open\xdd\xff\xff\xff\xff",
    ],
)
def test_bombs_are_malformed(tail: bytes) -> None:
    """Regression: deep nesting was an exception of another kind. A length that is only claimed costs nothing."""
    envelope = msgspec.msgpack.encode({"version": PROTOCOL_VERSION, "sender": 1, "receiver": 2, "seq": 3})
    with pytest.raises(ProtocolError, match="malformed"):
        decode(b"\x85" + envelope[1:] + msgspec.msgpack.encode("body") + tail)


def test_the_largest_lists_pass_and_fit_a_frame() -> None:
    """What the bounds allow can be sent."""
    beat = Beat(open=[OpenEpoch("f" * 32, 1 << 62)] * MAX_OPEN)
    reserve = Reserve(
        transfer_id="f" * 32,
        epoch=1 << 62,
        engine="h" * 256,
        tokens=1 << 31,
        from_token=0,
        blocks=[[(1 << 31) - 1] * MAX_BLOCKS],
        prompt_hash=bytes(64),
    )
    for message in (Message(1, 2, 3, beat), Message(1, 2, 3, reserve)):
        sent = encode(message)
        assert decode(sent) == message
        assert len(sent) <= MAX_PAYLOAD_BYTES


@pytest.mark.parametrize(
    "body", [Refuse(reason="é" * 9_999), Fail(transfer_id="t", epoch=1, dirty=True, reason="é" * 9_999)]
)
def test_a_reason_that_is_too_long_is_cut_by_its_sender(body: Refuse | Fail) -> None:
    """Or the peer would never learn that it was refused."""
    received = decode(encode(Message(1, 2, 3, body))).body

    assert isinstance(received, Refuse | Fail)
    assert len(received.reason) == MAX_REASON_CHARS
    assert received.reason.endswith("é…")
