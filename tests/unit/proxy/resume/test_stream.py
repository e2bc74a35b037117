"""Which leg of an answer starts with a token, goes on after many, or passes as it comes."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from baton.contracts.http import TOKEN_COMMENT
from baton.proxy.request.endpoints import COMPLETIONS
from baton.proxy.request.parse import parse
from baton.proxy.resume.continuation import CannotFollowError
from baton.proxy.resume.splicer import TokenSeam
from baton.proxy.resume.stream import Stream

END = b"data: [DONE]\n\n"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 9}


def stream(**fields: Any) -> Stream:
    """An answer to a completion."""
    body = msgspec.json.encode({"model": "m", "prompt": "x", "stream": True, **fields})
    return Stream(parse(COMPLETIONS, "r", [], body), "all")


def event(token: int, *, prompt: bool = False) -> bytes:
    """One token's event, with ids."""
    choice = {"index": 0, "text": f" {token}", "logprobs": None, "finish_reason": None, "stop_reason": None}
    choice |= {"prompt_token_ids": [7] if prompt else None, "token_ids": [token]}
    head = {"id": "cmpl-r", "object": "text_completion", "created": 1, "model": "m"}
    return b"data: " + json.dumps(head | {"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


def begin_decode(answer: Stream) -> None:
    """A decode node's stream begins."""
    answer.begin_decode(SimpleNamespace(sent_s=0.0, second_token_gap_s=None))


def take(answer: Stream, data: bytes) -> bytes:
    """What the client gets of a decode node's bytes."""
    return answer.passing.take(data) if answer.passing is not None else data


def relayed(**fields: Any) -> Stream:
    """An answer of which the client has the prefill node's token 1."""
    answer = stream(**fields)
    answer.begin_prefill()
    assert answer.take_prefill(TOKEN_COMMENT + b"1\n\n" + event(1, prompt=True))
    return answer


@pytest.mark.parametrize("fields", [GREEDY, {}], ids=["greedy", "random"])
def test_a_stream_that_broke_before_a_second_token_starts_with_the_first(fields: dict[str, Any]) -> None:
    """As often as it breaks."""
    answer = relayed(**fields)
    for _ in range(2):
        begin_decode(answer)
        assert take(answer, event(1, prompt=True)) == b""

        assert answer.go_on() is None
        assert answer.asked.start == (1,)


def test_a_stream_that_has_a_second_token_goes_on_after_it() -> None:
    """From token ids; the seam stays when the next leg's stream begins."""
    answer = relayed(**GREEDY)
    begin_decode(answer)
    assert take(answer, event(1, prompt=True) + event(2))

    assert answer.go_on() is None
    begin_decode(answer)

    assert isinstance(answer.passing, TokenSeam)
    assert answer.asked.start == ()
    assert msgspec.json.decode(answer.asked.fields["prompt"]) == [7, 1, 2]


@pytest.mark.parametrize("named", [True, False], ids=["named late", "not at all"])
def test_a_decode_node_that_was_first(named: bool) -> None:
    """Nothing of the prefill node's is relayed any more, and no leg starts with its token: the client has more than that."""
    answer = stream(**GREEDY)
    answer.begin_prefill()
    if named:
        assert answer.take_prefill(TOKEN_COMMENT + b"1\n\n") == b""
    begin_decode(answer)
    assert take(answer, event(1, prompt=True) + event(2))
    assert answer.take_prefill(event(1)) == b""

    assert answer.go_on() is None
    begin_decode(answer)

    assert isinstance(answer.passing, TokenSeam)
    assert not answer.can_start


def test_a_random_stream_of_a_decode_node_that_was_first_ends() -> None:
    """What came is not what another node would send."""
    answer = stream()
    answer.begin_prefill()
    begin_decode(answer)

    with pytest.raises(CannotFollowError):
        answer.go_on()


def test_a_token_that_was_relayed_without_its_name() -> None:
    """No leg can start with it: a greedy stream goes on from what its record has."""
    answer = stream(**GREEDY)
    answer.begin_prefill()
    assert answer.take_prefill(event(1, prompt=True))
    begin_decode(answer)

    assert not answer.can_start
    assert answer.go_on() is None
    begin_decode(answer)
    assert isinstance(answer.passing, TokenSeam)
