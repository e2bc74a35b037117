"""What stands before a whole answer, in whatever pieces it comes."""

import pytest

from baton.contracts.http import ANSWER_COMMENT, TOKENS_COMMENT
from baton.proxy.errors import UpstreamError
from baton.proxy.resume.kept_tokens import Head, KeptTokens

HEAD = b'{"status": 200, "headers": [["content-type", "application/json"]]}\n'
WRONG = [
    ANSWER_COMMENT + b'{"status": 99, "headers": []}\n',
    ANSWER_COMMENT + b'{"status": 600, "headers": []}\n',
    ANSWER_COMMENT + b'{"status": 200, "headers": [["a", "b\\r\\nset-cookie: c"]]}\n',
    ANSWER_COMMENT + b'{"status": 200, "headers": [["a b", "c"]]}\n',
    ANSWER_COMMENT + b'{"status": 200, "headers": [["", ""]]}\n',
    ANSWER_COMMENT + b'{"status": 200, "headers": [], "x": ' + b"[" * 30_000 + b"\n",
    ANSWER_COMMENT + b'{"status": 200, "headers": [], "x": "' + b"x" * (1 << 17) + b'"}\n',
    b": baton tokens 0 " + b"1" * (1 << 21),
]
LINES = TOKENS_COMMENT + b"0 1,2\n" + TOKENS_COMMENT + b"1 9\n"


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_tokens_and_the_answer_behind_them(size: int) -> None:
    """The body may hold what looks like a line."""
    body = b'{"a": "\n: baton tokens 0 5\n"}'
    whole = LINES + ANSWER_COMMENT + HEAD + body
    kept = KeptTokens()
    found, at = None, 0
    while found is None:
        found, at = kept.take(whole[at : at + size]), at + size

    assert found[0] == Head(200, [("content-type", "application/json")])
    assert found[1] + whole[at:] == body
    assert kept.start() == ((1, 2), (9,))
    assert kept.lines == 2


def test_a_further_node_says_the_same_tokens_first() -> None:
    """What it adds is kept; another token is a failure of its own."""
    kept = KeptTokens()
    kept.take(LINES)
    kept.begin_leg()
    kept.take(TOKENS_COMMENT + b"0 1,2,3\n")
    assert kept.start() == ((1, 2, 3), (9,))

    kept.begin_leg()
    with pytest.raises(UpstreamError):
        kept.take(TOKENS_COMMENT + b"0 1,4\n")
    assert kept.start() == ((1, 2, 3), (9,))


@pytest.mark.parametrize("line", [b"what\n", ANSWER_COMMENT + b"{}\n", ANSWER_COMMENT + b"no\n", *WRONG])
def test_what_is_neither(line: bytes) -> None:
    with pytest.raises(UpstreamError):
        KeptTokens().take(line)


def test_what_can_be_started_with() -> None:
    """Tokens that have come, unless they cannot be read."""
    kept = KeptTokens()
    seen = [(kept.can_start, kept.start())]
    for line in (b"0 1,2\n", b"0 x\n"):
        kept.take(TOKENS_COMMENT + line)
        seen.append((kept.can_start, kept.start()))

    assert seen == [(False, ()), (True, ((1, 2),)), (False, ())]


def test_a_leg_that_broke_in_a_line_leaves_nothing_of_it() -> None:
    """Nor of an answer that had begun."""
    kept = KeptTokens()
    kept.begin_leg()
    kept.take(TOKENS_COMMENT + b"0 1\n" + ANSWER_COMMENT + b'{"status":200,"headers":[]}\n{"ha')
    answered = [kept.is_answered]
    kept.begin_leg()
    kept.take(TOKENS_COMMENT + b"0 1\n" + TOKENS_COMMENT + b"0 2")
    kept.begin_leg()
    answered.append(kept.is_answered)

    assert answered == [True, False]
    assert kept.take(TOKENS_COMMENT + b"0 1\n") is None
    assert kept.start() == ((1,),)
