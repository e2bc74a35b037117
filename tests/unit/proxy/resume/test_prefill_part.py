"""Where a prefill node's part of a stream ends."""

import pytest

from baton.proxy.request.endpoints import CHAT, MESSAGES, RESPONSES
from tests.support.fake_typed import TypedAnswer
from tests.unit.proxy.resume.test_stream import gap, stream, take_prefill


@pytest.mark.parametrize(
    ("endpoint", "last"),
    [(MESSAGES, b"content_block_delta"), (RESPONSES, b"response.output_text.delta")],
)
def test_the_part_of_a_prefill_node_ends_before_what_looks_like_an_end(endpoint: str, last: bytes) -> None:
    """The decode node's stream has the rest, and the whole answer's end."""
    answer = stream(endpoint)
    answer.begin_prefill()
    body = {"request_id": "resp_r"}

    got = take_prefill(answer, b"".join(TypedAnswer(endpoint, body, 1, names=True).prefill_part()))
    answer.begin_decode(gap())
    got += answer.take(b"".join(TypedAnswer(endpoint, body, 3, names=True).stream()))

    whole = b"".join(TypedAnswer(endpoint, body, 3).stream())
    assert got.replace(b": ", b":").replace(b", ", b",") == whole.replace(b": ", b":").replace(b", ", b",")
    assert last in got
    assert answer.ended


def test_a_prefill_nodes_part_ends_before_the_signature_of_its_thoughts() -> None:
    answer = stream(MESSAGES)
    answer.begin_prefill()
    said = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":%b}\n\n'
    thought, signed = b'{"type":"thinking_delta","thinking":"a"}', b'{"type":"signature_delta","signature":"b"}'

    assert take_prefill(answer, said % thought + said % signed) == said % thought
    assert answer.part is not None
    assert answer.part.ended


@pytest.mark.parametrize("endpoint", [CHAT, MESSAGES])
def test_comments_of_a_prefill_node_neither_pass_nor_end_its_part(endpoint: str) -> None:
    answer = stream(endpoint)
    answer.begin_prefill()

    assert take_prefill(answer, b": keep-alive\n\n") == b""
    assert answer.part is not None
    assert not answer.part.ended
    assert not answer.part.has_passed
