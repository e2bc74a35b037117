"""What an answer's record makes of single events: most are not parsed, and all count."""

from typing import Any
from unittest.mock import Mock

import pytest

import baton.proxy.resume.record
from baton.proxy.resume.chat_events import ChatEvents
from baton.proxy.resume.events import parse
from baton.proxy.resume.record import AnswerRecord
from baton.proxy.resume.rules import CannotFollowError
from tests.unit.proxy.resume.answers_in_pieces import KINDS, ONE_BY_ONE, event, named, record_of, unnamed


def said(text: str, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None} | more]})


def test_events_that_differ_in_a_piece_of_text_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is their example; one that says something else, too, is not."""
    record = record_of("chat")
    record.take(said("", delta={"role": "assistant"}))
    record.take(named(0, [10]) + said("a"))
    record.take(named(0, [11]) + said("b", finish_reason="stop"))
    monkeypatch.setattr(baton.proxy.resume.record, "parse", None)

    assert record.take(named(0, [12]) + said("c")) == said("c")
    assert record.start() == ((10, 11, 12),)


@pytest.mark.parametrize("together", [True, False])
def test_all_text_is_known_however_its_events_came(*, together: bool) -> None:
    """Each at once with the one before, or alone: the next leg may say it in one piece, and no other one."""
    record, pieces = record_of("chat"), ["a", "bc", "café", "\n", "d"]
    events = [named(0, [at]) + said(piece) for at, piece in enumerate(pieces)]
    for data in [b"".join(events)] if together else events:
        record.take(data)
    for last in ("D", "d"):
        record.begin_leg()
        whole = named(0, range(5)) + said("abccafé\n" + last)
        if last == "d":
            assert record.take(whole) == b""
        else:
            with pytest.raises(CannotFollowError):
                record.take(whole)
    assert record.take(named(0, [5]) + said("e")) == said("e")
    assert record.start() == ((0, 1, 2, 3, 4, 5),)


def test_tokens_are_known_where_the_server_sends_no_log_probabilities() -> None:
    """As vLLM does with `include_reasoning: false` and a parser, though they were asked for."""
    record = AnswerRecord(ChatEvents(), has_logprobs=True)
    record.take(named(0, [1, 2]) + said("", delta={"role": "assistant"}))
    assert record.start() == ()

    record.take(named(0, [3]) + said("a"))
    assert record.start() == ((1, 2, 3),)


def test_two_items_of_one_index_pass_as_they_came() -> None:
    """VLLM names a search of gpt-oss twice: as a call, and as a search. Another node says the same."""
    record, events = record_of("response"), [TYPED["response"]("search"), TYPED["response"]("browse")]
    assert record.take(events[0]) == events[0]
    record.begin_leg()

    passed = [record.take(each) for each in events]
    assert (passed[0], b"browse" in passed[1]) == (b"", True)
    record.begin_leg()
    assert [record.take(each) for each in events] == [b"", b""]


CALL = {"index": 0, "id": "call-1", "type": "function"}
TYPED = {
    "chat": lambda tool: said("", delta={"tool_calls": [CALL | {"function": {"name": tool, "arguments": ""}}]}),
    "message": lambda tool: event(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "c", "name": tool}}
    ),
    "response": lambda tool: event(
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "function_call", "name": tool}}
    ),
}


@pytest.mark.parametrize("kind", TYPED)
@pytest.mark.parametrize("other", ["read", "read_all_files"])
def test_a_call_of_another_tool_is_not_glued_to_the_one_that_the_client_has(kind: str, other: str) -> None:
    record = record_of(kind)
    record.take(TYPED[kind]("read_file"))
    record.begin_leg()
    assert record.take(TYPED[kind]("read_file")) == b""
    record.begin_leg()

    with pytest.raises(CannotFollowError):
        record.take(TYPED[kind](other))


def test_events_with_log_probabilities_are_counted_though_they_are_alike() -> None:
    record = AnswerRecord(ChatEvents(), has_logprobs=True)
    for token in (1, 2):
        record.take(named(0, [token]) + said("a", logprobs={"content": [{"token": "a"}]}))
    record.take(named(0, [3]) + said("", logprobs={"content": []}))
    record.take(named(1, [4]) + b"\n")

    assert record.start() == ((1, 2), ())


def test_the_tokens_of_each_choice_are_its_own() -> None:
    record = record_of("chat")
    record.take(named(1, [9]) + said("z", index=1))
    for token in (1, 2):
        record.take(named(0, [token]) + said("a"))

    assert record.start() == ((1, 2), (9,))


def test_a_dialect_is_told_once_of_each_leg(monkeypatch: pytest.MonkeyPatch) -> None:
    record, told = record_of("chat"), Mock()
    monkeypatch.setattr(record.dialect, "begin_leg", told)
    for _ in range(2):
        for piece in ("a", "b"):
            record.take(said(piece, logprobs={"content": [{"token": piece}]}))
        record.begin_leg()

    assert [call.args for call in told.call_args_list] == [(False,), (True,)]


def test_tokens_that_are_named_before_their_event_keep_their_order() -> None:
    record = record_of("chat")
    record.take(named(0, [1]) + said("a"))
    record.take(named(0, [2]))
    record.take(named(0, [3]) + said("b"))

    assert record.start() == ((1, 2, 3),)


@pytest.mark.parametrize("is_short", [False, True])
def test_a_third_leg_repeats_what_both_legs_before_have_said(*, is_short: bool) -> None:
    """But for the event in which the first one broke."""
    record, events = record_of("chat", is_short=is_short), list(KINDS["chat"](ONE_BY_ONE, 1))
    got = [record.take(events[0] + events[1][:9])]
    for last in (3, len(events)):
        record.begin_leg()
        got.append(record.take(b"".join(events[:last])))

    assert got == [unnamed(b"".join(each)) for each in (events[:1], events[1:3], events[3:])]


def test_a_response_keeps_the_time_at_which_the_client_has_seen_it_made() -> None:
    record = record_of("response")

    def told(kind: str, created_at: int) -> bytes:
        return b"event: %b\n" % kind.encode() + event({"type": kind, "response": {"created_at": created_at}})

    record.take(told("response.created", 5))
    record.begin_leg()

    assert record.take(told("response.created", 9)) == b""
    assert b'"created_at":5' in record.take(told("response.completed", 9))


@pytest.mark.parametrize("each", [1, 2, 5])
def test_an_endless_stream_is_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch, each: int) -> None:
    monkeypatch.setattr(baton.proxy.resume.record, "MAX_START_TOKENS", 5)
    record = record_of("chat")
    for at in range(5 // each + 1):
        assert record.can_start
        record.take(named(0, [at] * each) + event({"choices": [{"index": 0, "delta": {"content": "a"}}]}))

    with pytest.raises(CannotFollowError):
        record.start()


def test_a_part_of_a_responses_event_comes_with_its_log_probabilities() -> None:
    """Those of the tokens that the client does not have."""
    record = record_of("response")

    def told(text: str) -> bytes:
        body = {"type": "response.output_text.delta", "delta": text, "logprobs": [{"token": each} for each in text]}
        return b"event: response.output_text.delta\n" + event(body)

    record.take(told("a"))
    record.begin_leg()

    got = parse(record.take(told("ab")))
    assert (got["delta"], got["logprobs"]) == ("b", [{"token": "b"}])


def test_a_message_goes_on_within_an_event() -> None:
    """A ping that came first changes nothing; another one passes when all has been repeated."""
    record, ping = record_of("message"), b'event: ping\ndata: {"type":"ping"}\n\n'

    def told(text: str) -> bytes:
        body = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        return b"event: content_block_delta\n" + event(body)

    record.take(ping)
    record.take(named(0, [1]) + told("a"))
    assert record.start() == ((1,),)
    record.begin_leg()

    assert record.take(ping + told("ab") + ping) == told("b") + ping


def test_a_role_that_the_client_does_not_have_comes_while_others_are_repeated() -> None:
    """In one event with them."""
    record = record_of("chat")
    roles = [{"index": index, "delta": {"role": "assistant"}} for index in range(2)]
    record.take(event({"choices": roles[:1], "prompt_token_ids": [7]}) + said("a"))
    record.begin_leg()

    got = record.take(event({"choices": roles, "prompt_token_ids": [7]}) + said("a"))
    assert got == event({"choices": roles[1:], "prompt_token_ids": None})


def test_a_tool_call_goes_on_beside_one_that_is_repeated() -> None:
    """The rest of its arguments comes without what has been said of it."""
    record = record_of("chat")

    def told(arguments: str) -> bytes:
        calls = [
            {"index": index, "id": f"c{index}", "type": "function", "function": {"name": "look", "arguments": text}}
            for index, text in enumerate(["{}", arguments])
        ]
        return said("", delta={"tool_calls": calls})

    record.take(told("{"))
    record.begin_leg()

    delta = parse(record.take(told("{a")))["choices"][0]["delta"]
    assert delta == {"tool_calls": [{"index": 1, "function": {"arguments": "a"}}]}


@pytest.mark.parametrize("place", ["output_index", "content_index", "summary_index"])
def test_parts_of_a_response_are_told_apart_by_their_place(place: str) -> None:
    record = record_of("response")
    record.take(event({"type": "response.content_part.added", place: 0}))
    record.begin_leg()

    got = record.take(b"".join(event({"type": "response.content_part.added", place: at}) for at in range(2)))
    assert parse(got) == {"type": "response.content_part.added", place: 1, "sequence_number": 1}


def test_blocks_of_a_message_are_told_apart_by_their_index() -> None:
    """A further leg says the beginning of the second one again."""
    record = record_of("message")

    def told(kind: str, index: int, **delta: str) -> bytes:
        return event({"type": f"content_block_{kind}", "index": index, "delta": delta})

    begun = told("start", 0) + told("delta", 0, text="a") + told("stop", 0) + told("start", 1)
    record.take(begun)
    record.begin_leg()

    assert record.take(begun + told("delta", 1, text="b")) == told("delta", 1, text="b")


def test_an_event_like_others_whose_text_is_none_passes_as_it_came() -> None:
    """It is the client's to judge; the tokens are not known any more."""
    record = record_of("chat")
    record.take(named(0, [1]) + said("a"))
    odd = said("a").replace(b'"a"', b'"\\x"')

    assert record.take(odd) == odd
    with pytest.raises(CannotFollowError):
        record.start()


@pytest.mark.parametrize("is_short", [False, True])
def test_comments_of_a_further_leg_pass(*, is_short: bool) -> None:
    """Though one has come before: they keep the connection open while the node computes."""
    record, comment = record_of("chat", is_short=is_short), b": keep-alive\n\n"
    record.take(comment + said("a"))
    record.begin_leg()

    assert record.take(comment + said("a")) == comment


@pytest.mark.parametrize("is_id", [False, True])
def test_a_token_without_text_comes_with_what_else_is_said_of_it(*, is_id: bool) -> None:
    """In one event with a token that the client has."""
    record = record_of("chat")

    def told(text: str, *tokens: int) -> bytes:
        return said(
            text, **{"token_ids": tokens} if is_id else {"logprobs": {"content": [{"token": at} for at in tokens]}}
        )

    record.take(told("a", 1))
    record.begin_leg()

    assert record.take(told("a", 1, 2)) == told("", 2)


def test_events_in_another_layout_of_json_are_read_too() -> None:
    """Two that are alike say a text twice."""
    record = record_of("chat")
    same, other = (said(text).replace(b'":', b'": ') for text in "ab")
    record.take(same + same)
    record.begin_leg()

    assert record.take(same + same + other) == other
