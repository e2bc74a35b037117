"""Which leg of an answer starts with tokens, and which bytes of a prefill node's pass."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from baton.contracts.http import AHEAD, TOKENS_COMMENT
from baton.proxy.errors import FailureKind
from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from baton.proxy.request.parse import parse
from baton.proxy.resume.events import without_ids
from baton.proxy.resume.rules import CannotFollowError
from baton.proxy.resume.stream import Stream

DONE = b"data: [DONE]\n\n"
HEAD = {"id": "cmpl-r", "object": "text_completion", "created": 1, "model": "m"}


def stream(endpoint: str = COMPLETIONS, *, resumes: bool = True, **fields: Any) -> Stream:
    prompt: dict[str, Any] = {"prompt": "x"} if endpoint == COMPLETIONS else {"messages": [], "input": "x"}
    body = msgspec.json.encode({"model": "m", "stream": True, **prompt, **fields})
    return Stream(parse(endpoint, "r", [], body), resumes=resumes)


def event(token: int, reason: str | None = None, *, names: bool = True, index: int = 0) -> bytes:
    choice = {"index": index, "text": f" {token}", "logprobs": None, "finish_reason": reason}
    name = TOKENS_COMMENT + b"%d %d\n" % (index, token) if names else b""
    return name + b"data: " + json.dumps(HEAD | {"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


ROLE = (
    b'data: {"id":"c","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
ERROR = b'data: {"error":{"message":"no","code":%d}}\n\n'
ALL_END = [event(1, "stop"), event(2, "stop", index=1)]


def gap(sent_s: float = 0.0) -> Any:
    return SimpleNamespace(sent_s=sent_s, second_token_gap_s=None)


def take_prefill(answer: Stream, data: bytes) -> bytes:
    assert answer.part is not None
    return answer.part.take(data)


def relayed(**more: Any) -> Stream:
    """An answer of which the client has the prefill node's token 1."""
    answer = stream(**more)
    answer.begin_prefill()
    assert take_prefill(answer, event(1)) == event(1, names=False)
    assert take_prefill(answer, event(0, "abort", names=False) + DONE) == b""
    return answer


@pytest.mark.parametrize("resumes", [True, False])
def test_a_stream_that_broke_before_a_second_token_starts_with_the_first(*, resumes: bool) -> None:
    """As often as it breaks, and though streams are not resumed: the client has it by our doing."""
    answer = relayed(resumes=resumes)
    for _ in range(2):
        answer.begin_decode(gap())
        assert answer.take(event(1)) == b""

        answer.go_on()
        assert answer.asked.start == ((1,),)


def test_a_stream_that_has_a_second_token_starts_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap between them is noted once."""
    monkeypatch.setattr("baton.proxy.resume.stream.perf_counter", lambda: 7.5)
    answer, record = relayed(), gap(5.0)
    answer.begin_decode(record)
    assert answer.take(event(1) + event(2)) == event(2, names=False)
    assert record.second_token_gap_s == 2.5
    assert not answer.can_start
    assert not answer.ended
    assert answer.can_go_on
    assert stream(stream=False).ended, "which is not known"
    assert not stream(stream=False).can_go_on

    answer.go_on()
    assert answer.asked.start == ((1, 2),)
    later = gap()
    answer.begin_decode(later)
    assert answer.take(event(1) + event(2) + event(3)) == event(3, names=False)
    assert later.second_token_gap_s is None


def test_a_stream_of_a_decode_node_that_was_first() -> None:
    """Nothing of the prefill node's passes any more."""
    answer = stream()
    answer.begin_prefill()
    record = gap()
    answer.begin_decode(record)
    assert answer.take(event(1)) == event(1, names=False)
    assert take_prefill(answer, event(1)) == b""
    assert answer.went_on
    assert record.second_token_gap_s is None
    assert not answer.can_start


def test_a_relayed_stream_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the decode node begins with is compared byte for byte; most streams need no more."""
    monkeypatch.setattr("baton.proxy.resume.record.parse", None)
    answer = relayed()
    answer.begin_decode(gap())

    assert answer.take(event(1) + event(2, "stop") + DONE) == event(2, "stop", names=False) + DONE


def test_another_token_of_a_decode_node() -> None:
    """It has computed the prompt itself: the next leg starts with the client's."""
    answer = relayed()
    answer.begin_decode(gap())
    with pytest.raises(CannotFollowError):
        answer.take(event(4))

    assert answer.can_start
    answer.restart(FailureKind.DISCONNECT)
    assert answer.asked.start == ((1,),)


def test_a_prefill_node_that_named_no_token() -> None:
    answer = stream()
    answer.begin_prefill()
    assert take_prefill(answer, event(1, names=False))

    assert answer.tokens() == ()
    assert not answer.can_start
    with pytest.raises(CannotFollowError):
        answer.go_on()


@pytest.mark.parametrize(
    ("endpoint", "n", "came", "passed", "ends"),
    [
        (COMPLETIONS, 1, [event(1, "length"), DONE], [event(1, "length", names=False), DONE], "whole"),
        (COMPLETIONS, 2, [*ALL_END, DONE], [*map(without_ids, ALL_END), DONE], "whole"),
        # Its engine has ended a choice of which it has said nothing: the stream's end is not the answer's.
        (COMPLETIONS, 2, [event(1), event(0, "abort", names=False), DONE], [event(1, names=False)], "part"),
        (CHAT, 1, [ROLE, DONE], [ROLE], "part"),
        (CHAT, 2, [ROLE, event(1, "stop", names=False), DONE], [ROLE, event(1, "stop", names=False)], "part"),
        # A failure: the client sees nothing of it, nor of what follows; its own fault is the decode node's to say.
        (COMPLETIONS, 1, [ERROR % 400, event(1)], [], "part"),
        (COMPLETIONS, 1, [ERROR % 500, event(1)], [], "broken"),
    ],
)
def test_how_a_prefill_nodes_part_ends(
    endpoint: str, n: int, came: list[bytes], passed: list[bytes], ends: str
) -> None:
    """With the whole answer, or with what the decode node goes on from."""
    answer = stream(endpoint, n=n)
    answer.begin_prefill()

    assert take_prefill(answer, b"".join(came)) == b"".join(passed)
    assert answer.part is not None
    assert answer.part.ended
    assert answer.part.is_whole == (ends == "whole")
    assert (answer.part.broken is not None) == (ends == "broken")


@pytest.mark.parametrize(
    ("kind", "had_tokens", "start"),
    [
        (FailureKind.DISCONNECT, True, ((1, 2),)),
        (FailureKind.STATUS, True, ()),
        (FailureKind.STATUS, False, ((1, 2),)),
        (FailureKind.EMPTY, True, ()),
    ],
)
def test_a_whole_answer_starts_with_the_tokens_that_it_has_unless_they_may_be_at_fault(
    kind: FailureKind, had_tokens: bool, start: Any
) -> None:
    """Which they are not if the node that failed had not been given them."""
    answer = stream(stream=False)
    assert answer.kept is not None
    answer.kept.take(TOKENS_COMMENT + b"0 1,2\n")
    assert (answer.tokens(), answer.asked.names_tokens) == (((1, 2),), AHEAD)

    answer.restart(kind, had_tokens=had_tokens)

    assert answer.asked.start == answer.tokens() == start


def test_what_a_prefill_node_said_of_which_the_client_has_nothing_does_not_count() -> None:
    """Another one begins the answer."""
    answer = stream()
    answer.begin_prefill()
    assert take_prefill(answer, TOKENS_COMMENT + b"0 7\n" + ERROR % 500) == b""

    answer.begin_prefill()

    assert take_prefill(answer, event(1)) == event(1, names=False)
    assert answer.tokens() == ((1,),)


def test_the_part_of_a_prefill_node_ends_with_the_last_choice() -> None:
    """One choice has ended by itself; another leg starts with all three tokens."""
    answer = stream(n=3)
    answer.begin_prefill()
    begun = [event(1), event(0, "abort", names=False), event(2, "stop", index=1), event(3, index=2)]
    rest = [event(0, "abort", names=False, index=2), event(9, names=False, index=2), DONE]

    assert answer.part is not None
    got, ended = [], []
    for events in (begun, rest):
        got.append(take_prefill(answer, b"".join(events)))
        ended.append(answer.part.ended)

    assert got[0] == b"".join(
        [event(1, names=False), event(2, "stop", names=False, index=1), event(3, names=False, index=2)]
    )
    assert got[1] == b""
    assert ended == [False, True]
    assert not answer.part.is_whole
    answer.restart(FailureKind.DISCONNECT)
    assert answer.asked.start == ((1,), (2,), (3,))


def two_relayed() -> Stream:
    """An answer with two choices, whose first tokens 1 and 2 the client has."""
    answer = stream(n=2)
    answer.begin_prefill()
    ends = [event(0, "abort", names=False, index=index) for index in range(2)]
    assert take_prefill(answer, b"".join([event(1), event(2, index=1), *ends, DONE]))
    answer.begin_decode(gap())
    return answer


@pytest.mark.parametrize("together", [True, False])
def test_a_choice_that_differs_when_another_one_has_gone_on(*, together: bool) -> None:
    """The client gets what stands before it; another leg starts with all that it has."""
    answer = two_relayed()
    read = [event(1) + event(5) + event(9, index=1)] if together else [event(1) + event(5), event(9, index=1)]

    got = answer.take(read[0])
    if together:
        assert isinstance(answer.broken, CannotFollowError)
    else:
        with pytest.raises(CannotFollowError):
            answer.take(read[1])

    assert got == event(5, names=False)
    assert answer.can_be_mended
    answer.go_on()
    assert answer.asked.start == ((1, 5), (2,))
    answer.begin_decode(gap())
    assert answer.take(event(1) + event(5) + event(2, index=1) + event(6)) == event(6, names=False)
    assert answer.broken is None
    assert not answer.can_be_mended, "a leg that has started with them has no such excuse"


def test_ids_that_stand_before_another_choices_end_are_kept() -> None:
    """The prefill node names what has come, whatever it sends next."""
    answer = stream(n=2)
    answer.begin_prefill()
    named = TOKENS_COMMENT + b"1 2\n"
    alone = TOKENS_COMMENT + b"0 3\n\n"
    take_prefill(answer, event(1) + alone + named + event(0, "abort", names=False) + event(2, index=1, names=False))

    answer.restart(FailureKind.DISCONNECT)

    assert answer.asked.start == ((1, 3), (2,))


def test_an_answer_without_tokens_is_not_mended() -> None:
    """A leg would start with nothing, and differ again."""
    answer = stream(CHAT)
    answer.begin_prefill()
    take_prefill(answer, ROLE)
    answer.begin_decode(gap())
    with pytest.raises(CannotFollowError):
        answer.take(b'data: {"id": "c", "choices": [{}]}\n\n')

    assert not answer.can_be_mended


@pytest.mark.parametrize(("n", "resumes", "why"), [(32, True, ""), (33, True, "several"), (2, False, "several")])
def test_several_answers_are_relayed_where_each_could_be_mended(n: int, resumes: bool, why: str) -> None:
    """And not without a bound: each has a transfer."""
    assert stream(n=n, resumes=resumes).why_not_relayed == why


def test_several_prompts_are_not_relayed() -> None:
    answer = stream(prompt=["a", "b"])
    assert (answer.why_not_relayed, answer.choices) == ("several", 1)


def test_nodes_that_make_one_response_give_it_one_id() -> None:
    drawn = bytes(stream(RESPONSES).asked.fields["request_id"])
    assert drawn.startswith(b'"resp_')
    assert bytes(stream(RESPONSES, request_id="mine").asked.fields["request_id"]) == b'"mine"'


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, MESSAGES, RESPONSES])
def test_what_is_not_recorded(endpoint: str) -> None:
    """Whole answers; named events are, for their end."""
    body = msgspec.json.encode({"model": "m", "messages": [], "prompt": "x", "input": "x", "stream": False})
    assert Stream(parse(endpoint, "r", [], body), resumes=True).record is None
    answer = stream(endpoint, resumes=False, echo=True)
    assert (answer.record is not None) == (endpoint in (MESSAGES, RESPONSES))
    assert not answer.asked.names_tokens


@pytest.mark.parametrize(("address", "why"), [("https://a/b.png", "fetched"), ("data:image/png;base64,AA", "")])
def test_a_first_token_is_relayed_where_both_nodes_have_the_same_image(address: str, why: str) -> None:
    """What stands at an address may change between two fetches: the first token would be of one image, the others of another."""
    part = {"type": "image_url", "image_url": {"url": address}}

    assert stream(CHAT, messages=[{"role": "user", "content": [part]}]).why_not_relayed == why
