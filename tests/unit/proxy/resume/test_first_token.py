"""The decode node's stream without what the client has from the prefill node, event by event."""

import json
from typing import Any

import pytest

from baton.contracts.http import TOKEN_COMMENT
from baton.proxy.errors import StreamBrokenError
from baton.proxy.resume.continuation import CannotFollowError
from baton.proxy.resume.first_token import FirstTokenSplicer, KnownEvent, PrefillPart
from baton.proxy.resume.record import TokenRecord

NAMED = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 100, "model": "m"}
END = b"data: [DONE]\n\n"


def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
    """One event of a stream; None: without a choice."""
    choices = [] if choice is None else [{"index": 0, "logprobs": None, "finish_reason": None} | choice]
    return (
        b"data: "
        + json.dumps(NAMED | {"choices": choices} | more, ensure_ascii=False, separators=(",", ":")).encode()
        + b"\n\n"
    )


def chat(**delta: Any) -> bytes:
    """An event of a chat."""
    return event({"delta": delta, "token_ids": None})


ROLE = chat(role="assistant", content="")


def known(*events: bytes) -> list[KnownEvent]:
    """What the client has; each event but that of the role holds one token."""
    bodies = [json.loads(each.removeprefix(b"data: ")) for each in events]
    return [KnownEvent(body, int("role" not in body["choices"][0].get("delta", ()))) for body in bodies]


def splice(has: list[KnownEvent], *data: bytes) -> bytes:
    """What the client gets of a decode node's stream."""
    splicer = FirstTokenSplicer(has, None, lambda: None, ids=(1,))
    return b"".join(splicer.take(each) for each in data)


def call(arguments: str, **more: Any) -> dict[str, Any]:
    """One tool call of a delta."""
    return {"index": 0, "function": {"arguments": arguments} | more}


def scored(*tokens: str) -> dict[str, Any]:
    """Log probabilities of a chat."""
    return {"content": [{"token": token, "logprob": -1.0} for token in tokens]}


MERGED = [
    pytest.param(chat(content="a"), chat(content="a b"), chat(content=" b"), id="text"),
    pytest.param(chat(content=""), chat(content="é"), chat(content="é"), id="half a character"),
    pytest.param(chat(reasoning="so"), chat(reasoning="so it"), chat(reasoning=" it"), id="reasoning"),
    pytest.param(
        chat(reasoning="so"), chat(reasoning="so", content="x"), chat(reasoning="", content="x"), id="its end"
    ),
    pytest.param(
        chat(tool_calls=[call("", name="f") | {"id": "one", "type": "function"}]),
        chat(tool_calls=[call('{"a', name="f") | {"id": "two", "type": "function"}]),
        chat(tool_calls=[call('{"a')]),
        id="a tool call, named at random",
    ),
    pytest.param(
        event({"delta": {"content": "a"}, "logprobs": scored("a")}),
        event({"delta": {"content": "ab"}, "logprobs": scored("a", "b"), "finish_reason": "stop"}),
        event({"delta": {"content": "b"}, "logprobs": scored("b"), "finish_reason": "stop"}),
        id="logprobs",
    ),
    pytest.param(
        event({"text": "a", "logprobs": {"tokens": ["a"], "text_offset": [0]}, "token_ids": [1]}),
        event({"text": "ab", "logprobs": {"tokens": ["a", "b"], "text_offset": [0, 1]}, "token_ids": [1, 2]}),
        event({"text": "b", "logprobs": {"tokens": ["b"], "text_offset": [1]}, "token_ids": [2]}),
        id="a completion",
    ),
]


@pytest.mark.parametrize(("first", "merged", "left"), MERGED)
def test_two_tokens_in_one_event(first: bytes, merged: bytes, left: bytes) -> None:
    """What the API server has not sent yet is merged: what the client has is taken off each field."""
    assert splice(known(first), merged, chat(content="c"), END) == left + chat(content="c") + END


@pytest.mark.parametrize("first", [case.values[0] for case in MERGED])
def test_an_event_that_the_client_has(first: bytes) -> None:
    """It is left out, and everything after it passes as it came."""
    assert splice(known(ROLE, first), ROLE, first, chat(content="b"), END) == chat(content="b") + END


def test_ids_of_a_tool_call_are_drawn_by_each_node() -> None:
    """The client keeps the one that it has."""
    one, two = (chat(tool_calls=[call("", name="f") | {"id": name, "type": "function"}]) for name in ("one", "two"))

    assert splice(known(one), two, END) == END


@pytest.mark.parametrize("answer", [chat(content="b"), chat(reasoning="a"), event(None), END])
def test_another_answer(answer: bytes) -> None:
    """A stream that does not begin with what the client has is not gone on with."""
    with pytest.raises(CannotFollowError):
        splice(known(chat(content="a")), answer)


def test_a_stream_of_another_second() -> None:
    """Each event gets the time of the client's first one; a text that looks like it does not."""
    late = [chat(content=text).replace(b":100,", b":101,") for text in ("a", ' "created":101, ', "c")]

    got = splice(known(chat(content="a")), late[0], late[1] + late[2][:20], late[2][20:], END)

    assert got == chat(content=' "created":101, ') + chat(content="c") + END


def test_comments_and_the_clients_own_errors_pass() -> None:
    """Neither goes on with the answer."""
    comment, error = b": keep-alive\n\n", b'data: {"error":{"code":400}}\n\n'
    went_on: list[None] = []
    splicer = FirstTokenSplicer(known(chat(content="a")), None, lambda: went_on.append(None))

    assert splicer.take(comment) == comment
    assert not went_on
    assert splicer.take(error + END) == error + END


def test_a_node_that_fails_before_it_adds_anything() -> None:
    """Another one can start with the client's token."""
    with pytest.raises(StreamBrokenError):
        splice(known(chat(content="a")), b'data: {"error":{"code":500}}\n\n')


def test_another_token_with_the_same_text() -> None:
    """Ids tell what texts do not."""
    first = event({"text": "", "token_ids": [1]})

    with pytest.raises(CannotFollowError):
        splice(known(first), event({"text": "", "token_ids": [2]}))


def test_ids_of_the_prompt_are_told_once() -> None:
    """Also where an event of two tokens is what is left of the first."""
    first = event({"text": "a", "token_ids": [1], "prompt_token_ids": [7]})
    merged = event({"text": "ab", "token_ids": [1, 2], "prompt_token_ids": [7]})

    assert splice(known(first), merged) == event({"text": "b", "token_ids": [2], "prompt_token_ids": None})


def part(*events: bytes, hides: bool = True) -> tuple[PrefillPart, bytes]:
    """A prefill node's part that has come, and what the client gets of it."""
    made = PrefillPart(TokenRecord(chat=True, hides=True) if hides else None)
    return made, b"".join(map(made.take, events))


BEGUN = event({"delta": {"role": "assistant", "content": ""}}, prompt_token_ids=[7, 8])
TOKEN = event({"delta": {"content": "a"}, "token_ids": [5]})
ID = TOKEN_COMMENT + b"5\n\n"
CAPPED = event({"delta": {}, "finish_reason": "abort", "token_ids": []})


def test_the_end_of_a_prefill_nodes_part() -> None:
    """What the node ends its part with is not the client's to see, and the answer goes on."""
    made, got = part(ID, BEGUN, TOKEN, CAPPED, event(None, usage={"prompt_tokens": 2}), END)

    assert got == BEGUN.replace(b"[7,8]", b"null") + TOKEN.replace(b"[5]", b"null")
    assert (made.ended, made.is_whole, made.ids, len(made.known)) == (True, False, (5,), 2)


def test_an_answer_that_ends_with_its_first_token() -> None:
    """The whole of it is the prefill node's."""
    last = event({"delta": {"content": "a"}, "finish_reason": "stop", "token_ids": [5]})

    made, got = part(BEGUN, last, END, hides=False)

    assert got == BEGUN + last + END
    assert (made.ended, made.is_whole) == (True, True)


def test_a_token_that_no_event_is_sent_for() -> None:
    """A parser has kept it back: the client gets nothing, as of one server, and a node can start with its id."""
    silent = event({"delta": {}, "logprobs": scored("<"), "token_ids": [5]})

    made, got = part(ID, BEGUN, silent, CAPPED)

    assert got == BEGUN.replace(b"[7,8]", b"null")
    assert (made.ids, len(made.known)) == ((5,), 1)


def test_nothing_is_taken_once_the_decode_node_streams() -> None:
    """A prefill node that is later than its decode node adds nothing."""
    made, _ = part(ID, BEGUN)
    made.close()

    assert made.take(TOKEN) == b""
    assert len(made.known) == 1


def test_a_prefill_nodes_own_error_is_no_end() -> None:
    """It has failed."""
    made, got = part(BEGUN, b'data: {"error":{"code":500}}\n\n')

    assert got == BEGUN.replace(b"[7,8]", b"null")
    assert made.broken is not None
