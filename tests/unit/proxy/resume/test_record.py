"""An answer whose legs break: the client has each part once, whatever the pieces in which a further node says it again."""

import re
from typing import Any

import pytest

from baton.contracts.http import TOKENS_COMMENT
from baton.contracts.kv_transfer import MAX_START_CHOICES, MAX_START_TOKENS
from baton.proxy.resume.chat_events import ChatEvents
from baton.proxy.resume.record import AnswerRecord
from baton.proxy.resume.rules import CannotFollowError, NotResumableReason
from baton.proxy.resume.short_record import MOST_EVENTS, ShortRecord
from tests.support.joined_stream import joined_stream
from tests.unit.proxy.resume.answers_in_pieces import (
    DIALECTS,
    DONE,
    KINDS,
    ONE_BY_ONE,
    WORDS,
    Groups,
    begun,
    chat,
    event,
    named,
    record_of,
    typed,
    unnamed,
)


def plain(stream: bytes) -> bytes:
    """Without what two writers of JSON do differently, and the name of an item that the client may not have had."""
    return re.sub(rb"msg_\d", b"msg", stream.replace(b": ", b":").replace(b", ", b","))


def groupings(kind: str) -> list[Groups]:
    """Ways in which a further node says the tokens; a group does not mix a thought and an answer, as no event of vLLM's does."""
    rest = [[4, 5, 6, 7, 8]] if kind == "reasoning" else [[4, 5, 6], [7, 8]]
    return [ONE_BY_ONE, [[0, 1], [2, 3], *rest], [[0], [1, 2, 3], *rest]]


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_cut_anywhere_goes_on_as_one(kind: str, *, is_short: bool) -> None:
    """Twice; byte for byte where the further node sends token by token too."""
    whole = list(KINDS[kind](ONE_BY_ONE, 1))
    client = b"".join(map(record_of(kind).take_event, whole))
    for cut in range(1, len(whole)):
        for groups in groupings(kind):
            record = record_of(kind, is_short=is_short)
            got = b"".join(map(record.take_event, whole[:cut]))
            for node, most in ((2, cut + 2), (3, len(whole))):
                if record.done:
                    break
                started = record.start() if node > 2 else ()
                record.begin_leg()
                got += record.take(b"".join(list(KINDS[kind](groups, node))[:most]))
                assert all(more[: len(ids)] == ids for ids, more in zip(started, record.start(), strict=False))

            assert joined_stream(got) == joined_stream(client), (cut, groups)
            assert got.count(b'"name"') == client.count(b'"name"')
            if groups is ONE_BY_ONE and kind != "tool":
                assert plain(got) == plain(client)
            assert record.done


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_legs_events_pass_as_they_came(kind: str) -> None:
    """In whatever pieces they are read; the ids of all tokens are known, and stand in nothing that the client gets."""
    whole = b"".join(KINDS[kind](ONE_BY_ONE, 1))
    first = 1000 if kind in DIALECTS else 0
    for size in (1, 7, 100, len(whole)):
        record = record_of(kind)

        assert b"".join(record.take(whole[at : at + size]) for at in range(0, len(whole), size)) == unnamed(whole)
        assert record.start() == ((*range(first, first + len(WORDS)),),) * (3 if kind == "several" else 1)


@pytest.mark.parametrize(
    "said",
    [
        unnamed(b"".join(chat(ONE_BY_ONE, 2, lambda text, _: {"content": text})).replace(b"plain", b"plane")),
        named(0, [0, 5]) + b"\n",  # known before any of their text
        b"".join(list(chat(ONE_BY_ONE, 2, lambda text, _: {"content": text}))[:2]) + DONE,  # its end is no end
    ],
    ids=["another text", "other tokens", "less"],
)
def test_what_differs_is_not_joined(said: bytes) -> None:
    """Though it begins alike; the tokens that the client has are still known."""
    record = begun(4)
    with pytest.raises(CannotFollowError):
        record.take(said)

    assert record.start() == ((0, 1, 2),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"0 x", NotResumableReason.NO_TOKEN_IDS),
        (b"0", NotResumableReason.NO_TOKEN_IDS),
        (b"%d 5" % MAX_START_CHOICES, NotResumableReason.NO_TOKEN_IDS),
        (b"0 1,,2", NotResumableReason.NO_TOKEN_IDS),
        (b"0 ,1", NotResumableReason.NO_TOKEN_IDS),
        (b"0 %d" % 2**31, NotResumableReason.NO_TOKEN_IDS),
        (b"0 4294967296", NotResumableReason.NO_TOKEN_IDS),
        (b"0 " + b"9" * 5000, NotResumableReason.NO_TOKEN_IDS),
        (b"9" * 5000 + b" 1", NotResumableReason.NO_TOKEN_IDS),
        (b"1 " + b"1," * MAX_START_TOKENS + b"1", NotResumableReason.TOO_LONG),
    ],
)
def test_what_names_no_tokens(line: bytes, reason: NotResumableReason) -> None:
    """The stream is relayed all the same; it cannot be gone on with."""
    record = record_of("chat")
    _, said, *_ = KINDS["chat"](ONE_BY_ONE, 1)
    text = said[said.index(b"data:") :]

    assert record.take_event(TOKENS_COMMENT + line + b"\n" + text) == text
    with pytest.raises(CannotFollowError) as caught:
        record.start()
    assert caught.value.reason is reason


def test_a_token_that_was_named_and_not_said_is_sampled_again() -> None:
    """With log probabilities, which a node does not know of tokens that it starts with: another token may come in its place."""
    record = AnswerRecord(ChatEvents(), has_logprobs=True)

    def said(text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [{"token": text}]}}
        return event({"choices": [choice | {"finish_reason": None}]})

    record.take(named(0, [1]) + said("a") + named(0, [2]) + b"\n")
    assert record.start() == ((1,),)
    record.begin_leg()

    assert record.take(named(0, [1]) + said("a") + named(0, [3]) + said("c")) == said("c")
    assert record.start() == ((1, 3),)


def test_a_tool_call_keeps_the_id_that_the_client_has() -> None:
    """Also where a node repeats it in each event."""
    record = record_of("chat")

    def said(call_id: str, name: str | None, arguments: str) -> bytes:
        call = {"index": 0, "id": call_id, "function": {"name": name, "arguments": arguments}}
        return event({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]})

    record.take(named(0, [1]) + said("mine", "look", "{"))
    record.begin_leg()
    got = record.take(said("theirs", "look", "{") + said("theirs", None, "a") + said("theirs", None, "}"))

    assert b"theirs" not in got
    assert got.count(b'"mine"') == 2


def test_a_responses_events_are_numbered_on_behind_empty_ones() -> None:
    """Which count, though they say nothing."""
    record = record_of("response")

    def said(number: int, text: str) -> bytes:
        body = {"type": "response.reasoning_text.delta", "output_index": 0, "delta": text, "sequence_number": number}
        return b"event: response.reasoning_text.delta\n" + event(body)

    record.take(named(0, [1]) + said(0, "") + said(1, "a") + said(2, ""))
    record.begin_leg()
    got = record.take(named(0, [1, 2]) + said(0, "a") + said(1, "b"))

    assert b'"sequence_number":3' in got


def test_a_stream_whose_tokens_were_not_named() -> None:
    """There is nothing to start with, but for one that has said nothing."""
    record = record_of("chat")
    assert record.start() == ()
    record.take_event(event({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]}))
    with pytest.raises(CannotFollowError):
        record.start()


def test_what_is_no_event_of_vllms_passes() -> None:
    """It is the client's to judge."""
    record = record_of("chat")
    for odd in (b"data: {\n\n", b'data: {"choices": 3}\n\n', b": ping\n\n", b"data: {}\n\n"):
        assert record.take_event(odd) == odd
    with pytest.raises(CannotFollowError):
        record.start()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 40, 10_000])
def test_a_short_record_passes_what_a_whole_one_does(kind: str, size: int) -> None:
    """In whatever pieces; a second leg begins with the bytes of the first, or with others."""
    first = list(KINDS[kind](ONE_BY_ONE, 1))
    for node in (1, 2):
        for groups in groupings(kind):
            second = b"".join(KINDS[kind](groups, node))
            got = []
            for is_short in (False, True):
                record = record_of(kind, is_short=is_short)
                passed = b"".join(map(record.take_event, first[:3]))
                record.begin_leg()
                passed += b"".join(record.take(second[at : at + size]) for at in range(0, len(second), size))
                got.append((passed, record.done, record.start()))
            assert got[0] == got[1]


def test_a_short_record_reads_a_long_stream() -> None:
    """It keeps no more events than a few."""
    record = record_of("chat", is_short=True)
    assert isinstance(record, ShortRecord)
    for at in range(MOST_EVENTS + 1):
        record.take(named(0, [at]) + event({"choices": [{"index": 0, "delta": {"content": "a"}}]}))

    assert not record._legs
    assert record.start() == (tuple(range(MOST_EVENTS + 1)),)


@pytest.mark.parametrize("is_short", [False, True])
def test_what_comes_behind_the_end_opens_nothing(*, is_short: bool) -> None:
    """As a comment that keeps the connection open."""
    record = record_of("chat", is_short=is_short)
    record.take(b"".join(KINDS["chat"](ONE_BY_ONE, 1)) if not is_short else b"".join(KINDS["chat"]([[8]], 1)))
    assert record.take(b": keep-alive\n\n") == b": keep-alive\n\n"
    assert record.done


def test_a_responses_items_keep_the_ids_that_the_client_has() -> None:
    record = record_of("response")
    got = b"".join(map(record.take_event, list(typed("/v1/responses", 1))[:6]))
    record.begin_leg()
    got += record.take(b"".join(typed("/v1/responses", 2)))

    assert b"msg_1" in got
    assert b"msg_2" not in got


def test_what_was_said_once_is_not_said_again_beside_something_new() -> None:
    """A role that comes with text; text that stands between what the template of events has and what it has not."""
    record = record_of("chat")

    def said(delta: dict[str, Any]) -> bytes:
        return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    record.take(named(0, [1]) + said({"role": "assistant", "content": "a"}))
    record.begin_leg()
    got = record.take(named(0, [1, 2]) + said({"role": "assistant", "content": "ab"}))
    assert b"role" not in got
    assert b'"content":"b"' in got
    record.take(said({"content": "c"}))
    record.take(said({"content": "f", "reasoning": "g"}))
    record.begin_leg()
    assert record.take(named(0, [1, 2]) + said({"role": "assistant", "content": "abcf", "reasoning": "g"})) == b""
    assert record.take(said({"content": "h"})) == said({"content": "h"})
