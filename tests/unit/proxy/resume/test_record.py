import json
from typing import Any

import pytest

from baton.proxy.resume.events import Splitter
from baton.proxy.resume.record import MAX_BYTES, ReplayRecord, TokenRecord
from baton.proxy.resume.rules import NotResumableReason
from tests.support.fake_answers import FIRST_ID, events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])


def chunk(**choice: Any) -> bytes:
    """One event of a completion."""
    told = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None, "token_ids": [5], **choice}
    return b"data: " + json.dumps({"id": "i", "choices": [told]}, separators=(",", ":")).encode() + b"\n\n"


FIRST = chunk(prompt_token_ids=[1, 2])


@PATHS
@pytest.mark.parametrize("size", [1, 7, 100, 1000, 10**6])
def test_ids_are_hidden_whatever_the_pieces(path: str, size: int) -> None:
    """The client gets, byte for byte, what a node sends that was not asked for ids."""
    sent = b"".join(events(path, 20, ids=True, usage=True))
    record = TokenRecord(chat=path == CHAT, hides=True)

    got = b"".join(record.take(sent[at : at + size]) for at in range(0, len(sent), size))

    assert got == b"".join(events(path, 20, usage=True))
    assert bytes(record.ids) == b"".join(b"%d," % (FIRST_ID + at) for at in range(20))
    assert (record.done, record.lost) == (True, None)


@PATHS
def test_only_whole_events_pass(path: str) -> None:
    """Half an event could not be gone on with."""
    sent = b"".join(events(path, 3, ids=True))
    record = TokenRecord(chat=path == CHAT, hides=True)

    for cut in range(0, len(sent), 10):
        got = record.take(sent[cut : cut + 10])
        assert got == b"" or got.endswith(b"\n\n")


def test_text_that_looks_like_ids_is_left_alone() -> None:
    """A quote inside of a string is escaped, so that what is cut out is never said."""
    evil = 'say "token_ids":[1,2] and "prompt_token_ids":[3] and ]}'
    event = chunk(text=evil)
    record = TokenRecord(chat=False, hides=True)
    record.take(FIRST)

    got = record.take(event)

    assert json.loads(got[6:])["choices"][0]["text"] == evil
    assert json.loads(got[6:])["choices"][0]["token_ids"] is None
    assert bytes(record.ids) == b"5,5,"


@pytest.mark.parametrize(
    ("event", "clean"),
    [
        (chunk(), 2),
        (chunk(token_ids=[5, 6]), 1),  # the second token may be held back
        (chunk(text=""), 1),
        (chunk(text="", token_ids=[]), 1),
    ],
)
def test_only_one_token_with_text_is_a_clean_place(event: bytes, clean: int) -> None:
    """Anything else may leave something in the node's detokeniser."""
    record = TokenRecord(chat=False, hides=True)
    record.take(FIRST)
    record.take(event)

    assert record.ids[: record.clean_bytes].count(b",") == clean
    assert record.tail == ([] if clean == 2 else [event])


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (chunk(token_ids=None), NotResumableReason.NO_TOKEN_IDS),
        (chunk(text=None), NotResumableReason.NOT_PLAIN),
        (chunk(index=1), NotResumableReason.NOT_PLAIN),
    ],
)
def test_what_cannot_be_gone_on_with_is_noticed(event: bytes, reason: NotResumableReason) -> None:
    """It is relayed all the same."""
    record = TokenRecord(chat=False, hides=False)
    record.take(FIRST)

    assert record.take(event) == event
    assert record.lost is reason


def test_reasoning_of_a_chat_is_noticed_and_what_was_sent_for_ids_alone_is_not_relayed() -> None:
    """A parser swallowed the token: without ids vLLM would have sent nothing."""
    role, *_ = events(CHAT, 1, ids=True)
    empty = (
        b'data: {"id":"i","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[4]}]}\n\n'
    )
    said = b'data: {"id":"i","choices":[{"index":0,"delta":{"reasoning":"x"},"logprobs":null,"finish_reason":null,"token_ids":[4]}]}\n\n'
    record = TokenRecord(chat=True, hides=True)
    record.take(role)

    assert record.take(empty) == b""
    assert record.take(said) == said.replace(b"[4]", b"null")
    assert record.lost is NotResumableReason.NOT_PLAIN


def test_a_record_is_bounded() -> None:
    """A stream that is too long to be remembered is relayed, and no longer remembered."""
    record = ReplayRecord()
    event = chunk(text="x" * 1000)
    for _ in range(2 * MAX_BYTES // len(event)):
        assert record.take(event) == event

    assert record.lost is NotResumableReason.TOO_LONG
    assert sum(map(len, record.tail)) <= MAX_BYTES


@pytest.mark.parametrize(("code", "breaks"), [(500, True), (503, True), (400, False)])
@pytest.mark.parametrize("make", [lambda: TokenRecord(chat=False, hides=False), ReplayRecord])
def test_a_nodes_own_error_event_is_a_break(make: Any, code: int, *, breaks: bool) -> None:
    """A dead engine is told of inside of a stream that ends well; the client's own mistake is an answer.

    What came before it, in the same piece of data, is sent; it was remembered as sent.
    """
    record = make()
    error = b'data: {"error": {"message": "m", "code": %d}}\n\n' % code
    end = b"data: [DONE]\n\n"

    got = record.take(FIRST + chunk() + error + end)

    assert (record.broken is not None, record.done) == (breaks, not breaks)
    assert got == (FIRST + chunk() if breaks else FIRST + chunk() + error + end)


def test_events_are_split_wherever_they_are_cut() -> None:
    """Also between the two line ends."""
    whole = b"data: a\n\ndata: b\n\ndata: [DONE]\n\n"
    for cut in range(len(whole)):
        splitter = Splitter()
        assert b"".join(splitter.whole(whole[:cut]) + splitter.whole(whole[cut:])) == whole
