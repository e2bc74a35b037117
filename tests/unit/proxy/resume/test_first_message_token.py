"""A stream of messages whose first token came from the prefill node, event by event."""

import json
from typing import Any

import pytest

from baton.contracts.http import TOKEN_COMMENT
from baton.proxy.errors import StreamBrokenError
from baton.proxy.resume.continuation import CannotFollowError
from baton.proxy.resume.first_message_token import MessagePart, MessageSplicer


def event(kind: str, **fields: Any) -> bytes:
    """One event."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, separators=(',', ':'))}\n\n".encode()


def block(kind: str, **more: Any) -> bytes:
    """The beginning of a block."""
    return event("content_block_start", index=0, content_block={"type": kind, **more})


def delta(kind: str, **said: str) -> bytes:
    """What is added to a block."""
    return event("content_block_delta", index=0, delta={"type": f"{kind}_delta", **said})


START = event("message_start", message={"id": "chatcmpl-1", "content": []})
STOP = event("content_block_stop", index=0) + event("message_stop")
ERROR = event("error", error={"message": "gone"})


def part(*events: bytes) -> tuple[MessagePart, bytes]:
    """A prefill node's part, and what the client gets of it."""
    made = MessagePart(None)
    return made, b"".join(map(made.take, events))


def splice(begun: bytes, *data: bytes) -> bytes:
    """What the client gets of a decode node's stream after what it has begun with."""
    made, _ = part(begun)
    splicer = MessageSplicer(made.known, None, lambda: None)
    return b"".join(splicer.take(each) for each in data)


@pytest.mark.parametrize(
    ("begun", "signed"),
    [
        (START + block("text", text="") + delta("text", text="a"), b""),
        (START + block("thinking", thinking="") + delta("thinking", thinking="a"), delta("signature", signature="x")),
        (START, b""),
    ],
    ids=["text", "thoughts", "held back"],
)
def test_the_end_of_a_prefill_nodes_part_is_not_the_answers(begun: bytes, signed: bytes) -> None:
    """Nothing of how it ends passes, signatures of thoughts included."""
    made, got = part(TOKEN_COMMENT + b"5\n\n" + begun, signed + STOP)

    assert got == begun
    assert (made.ids, made.ended, made.is_whole, made.broken) == ((5,), True, False, None)


def test_a_prefill_nodes_error_is_its_failure() -> None:
    """The client does not see it."""
    made, got = part(START, ERROR)

    assert got == START
    assert made.broken is not None


@pytest.mark.parametrize(
    ("first", "merged", "left"),
    [
        (delta("text", text="a"), delta("text", text="ab"), delta("text", text="b")),
        (delta("thinking", thinking="a"), delta("thinking", thinking="ab"), delta("thinking", thinking="b")),
        (
            delta("input_json", partial_json="{"),
            delta("input_json", partial_json='{"a'),
            delta("input_json", partial_json='"a'),
        ),
    ],
    ids=["text", "thoughts", "a tool's arguments"],
)
def test_what_the_client_has_is_left_out(first: bytes, merged: bytes, left: bytes) -> None:
    """Whole events, or the beginning of what was merged; a tool call's id is drawn by each node."""
    begun, again = START + block("tool_use", id="one"), START + block("tool_use", id="two")

    assert splice(begun + first, again + first, merged + STOP) == merged + STOP
    assert splice(begun + first, again + merged, STOP) == left + STOP


@pytest.mark.parametrize("answer", [delta("text", text="b"), delta("thinking", thinking="a"), block("thinking"), STOP])
def test_another_answer(answer: bytes) -> None:
    """A stream that does not begin with what the client has is not gone on with."""
    with pytest.raises(CannotFollowError):
        splice(delta("text", text="a"), answer)


def test_a_node_that_fails_before_it_adds_anything() -> None:
    """Another one can start with the client's token."""
    with pytest.raises(StreamBrokenError):
        splice(START, START, ERROR)
