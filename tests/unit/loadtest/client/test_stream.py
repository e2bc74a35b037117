import json

import pytest

from baton.loadtest.client.exchange import AnswerStream, error_words
from baton.loadtest.measures.record import CUT, ERROR_EVENT, MALFORMED
from tests.support.fake_answers import Asked, events, stream, text_of

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def fed(*pieces: bytes) -> AnswerStream:
    """A stream whose pieces came at 1, 2, 3 … s."""
    got = AnswerStream()
    for at, piece in enumerate(pieces, start=1):
        got.feed(piece, float(at))
    return got


def test_events_are_tokens_and_the_distances_between_them_itls() -> None:
    """The last token ends it, not usage or `[DONE]`. A chat's first event, a role, ends TTFT as in vLLM's benchmark, and is no token."""
    got = fed(*stream(Asked(path=COMPLETIONS, tokens=3, usage=True)))

    assert (got.first_s, got.last_s, got.gaps_s) == (1.0, 3.0, [1.0, 1.0])
    assert (got.input_tokens, got.output_tokens, got.tokens()) == (3, 3, 3)
    assert "".join(got.pieces) == "".join(map(text_of, range(3)))
    assert got.verdict(complete=True) == ""
    got = fed(*stream(Asked(path=CHAT, tokens=3)))

    assert (got.first_s, len(got.gaps_s), got.tokens()) == (1.0, 3, 3)


@pytest.mark.parametrize(("size", "newline"), [(1, b"\n"), (7, b"\n"), (1, b"\r\n"), (1000, b"\r\n")])
def test_pieces_may_be_cut_anywhere(size: int, newline: bytes) -> None:
    """TCP knows no events; neither does a server that ends lines the long way. Pings and other fields are none."""
    whole = b"".join([b": ping\n\n", b"event: x\nid: 1\n\n", *events(COMPLETIONS, 3)]).replace(b"\n", newline)
    got = fed(*(whole[at : at + size] for at in range(0, len(whole), size)))

    assert "".join(got.pieces) == "".join(map(text_of, range(3)))
    assert (len(got.gaps_s), got.verdict(complete=True)) == (2, "")


def test_a_stream_without_its_end_is_cut() -> None:
    """Even if HTTP says that it is complete."""
    *most, _ = events(COMPLETIONS, 3)

    assert fed(*most).verdict(complete=True) == CUT
    assert fed(*most[:1]).verdict(complete=False) == CUT
    assert AnswerStream().verdict(complete=False) == CUT


@pytest.mark.parametrize("event", [{"error": {"message": "it died"}}, {"object": "error", "message": "it died"}])
def test_an_error_event_is_an_error_whatever_follows(event: dict[str, object]) -> None:
    """Both of the shapes that servers have used."""
    first, *rest = events(COMPLETIONS, 2)
    got = fed(first, b"data: " + json.dumps(event).encode() + b"\n\n", *rest)

    assert (got.verdict(complete=True), got.detail) == (ERROR_EVENT, "it died")


USAGE = b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": %s}}'


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices"',
        b'{"choices": [{"text": "\xff"}]}',
        b'{"more": ' + b"[" * 100_000,
        USAGE % b"-1",
        USAGE % (b"1" + b"0" * 30),
    ],
    ids=["no JSON", "no UTF-8", "nested too deeply", "fewer tokens than none", "more tokens than can be written"],
)
def test_an_event_that_cannot_be_read_is_malformed(payload: bytes) -> None:
    """It is one record's failure, and ends no run."""
    got = fed(b"data: " + payload + b"\n\n", *events(COMPLETIONS, 1))

    assert got.verdict(complete=True) == MALFORMED


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"message": "old shape"}', "old shape"),
        (b'{"error": "plain"}', "plain"),
        (b"Bad Gateway", "Bad Gateway"),
        (b"[1]", "[1]"),
        (b'{"error": "\xff"}', '{"error": "\ufffd"}'),
        (b"[" * 100_000, "[" * 300),
    ],
)
def test_an_errors_words_are_found_in_any_shape(body: bytes, words: str) -> None:
    """They go into the report."""
    assert error_words(body) == words


def test_an_errors_words_may_be_nested_as_deeply_as_can_be_read() -> None:
    """Writing them needs more of the stack than reading them."""
    for depth in range(800, 1000):
        body = b'{"error": %s1%s}' % (b'{"a": ' * depth, b"}" * depth)
        assert error_words(body).startswith("{")
        assert fed(b"data: " + body + b"\n\n").verdict(complete=True) in (ERROR_EVENT, MALFORMED)
