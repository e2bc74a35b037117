from typing import Any

import msgspec
import pytest

from baton.proxy.request.endpoints import COMPLETIONS
from baton.proxy.request.parse import ClientRequest, parse
from baton.proxy.resume import events
from baton.proxy.resume.continuation import CannotFollowError, Continuation
from baton.proxy.resume.record import TokenRecord
from baton.proxy.resume.rules import NotResumableReason
from baton.proxy.resume.splicer import ReplaySeam, StreamSplicer, TokenSeam

NAME = {"id": "x-1", "object": "text_completion", "created": 1, "model": "m"}


def event(text: str, ids: list[int], *, ends: bool = False, **more: Any) -> bytes:
    """One event of a completion."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": "length" if ends else None}
    return events.encode({**NAME, "id": "x-2", "choices": [{**choice, "token_ids": ids}], **more})


def request() -> ClientRequest:
    """What the client asked."""
    return parse(COMPLETIONS, "id", [], b'{"model":"m","prompt":"x","temperature":0,"stream":true}')


def splicer(made: str, **following: Any) -> StreamSplicer:
    """A leg that goes on with an answer."""
    original = events.parse(events.encode({**NAME, "choices": [{"index": 0, "text": "", "prompt_token_ids": [1]}]}))
    continuation = Continuation(request=request(), original=original, **following)
    record = TokenRecord(chat=False, hides=True)
    return TokenSeam(continuation, record, chat=False) if made == "tokens" else ReplaySeam(continuation, record)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("tokens", event("a", [7])),
        ("tokens", event("x", [5])),
        ("replay", event("x", [5])),
        ("replay", event("ax", [5])),
    ],
)
def test_another_answer_than_the_one_that_was_sent_is_not_gone_on_with(made: str, said: bytes) -> None:
    """Its first token or its text differs from what the client has."""
    leg = splicer(made, repeated_text="ab", repeated_ids=(5, 6))

    with pytest.raises(CannotFollowError) as caught:
        leg.take(said)

    assert caught.value.reason is NotResumableReason.DIFFERS


@pytest.mark.parametrize("made", ["tokens", "replay"])
def test_what_the_client_has_is_left_out_and_the_end_is_kept(made: str) -> None:
    """One stream with the first answer's name, and its reason to end."""
    leg = splicer(made, repeated_text="ab", repeated_ids=(5, 6))

    got = leg.take(event("a", [5]) + event("bc", [6, 8]) + event("d", [9], ends=True))

    pieces = [events.parse(each) for each in got.split(events.END)[:-1]]
    assert "".join(piece.text for piece in pieces) == "cd"
    assert [piece.choice["finish_reason"] for piece in pieces if piece.choice] == [None, "length"]
    assert {piece.body["id"] for piece in pieces} == {"x-1"}


def test_usage_counts_the_original_prompt_and_no_more_of_it_as_cached() -> None:
    """Tokens of the answer were given as part of the prompt: D may have had them in its cache."""
    leg = splicer("tokens", prompt_tokens=10, given_tokens=4)
    usage = {"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17}

    got = leg.take(event("a", [5], ends=True, usage={**usage, "prompt_tokens_details": {"cached_tokens": 13}}))

    assert msgspec.json.decode(got.removeprefix(b"data: "))["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 10},
    }


def test_log_probabilities_go_on_where_those_of_the_client_end() -> None:
    """Their offsets are places in the whole text; those of tokens that the client has are left out."""
    leg = splicer("tokens", repeated_text="a", repeated_ids=(5,), text_offset=40)
    lists = {"text_offset": [0, 1], "token_logprobs": [-1.0, -2.0], "tokens": ["a", "b"], "top_logprobs": [{}, {}]}
    choice = {"index": 0, "text": "ab", "logprobs": lists, "finish_reason": None, "token_ids": [5, 6]}

    got = leg.take(events.encode({**NAME, "choices": [choice]}))

    said = events.parse(got).choice
    assert said is not None
    assert said["logprobs"] == {
        "text_offset": [41],
        "token_logprobs": [-2.0],
        "tokens": ["b"],
        "top_logprobs": [{}],
    }
