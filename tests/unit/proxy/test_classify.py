from typing import Any

import msgspec
import pytest

from proxy import classify
from proxy.classify import reason_for_local
from proxy.fields import split


def reason(**body: Any) -> str | None:
    """Classify a body."""
    return reason_for_local(split(msgspec.json.encode(body)))


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a"},
        {"prompt": [1, 2, 3]},
        {"prompt": ["a"]},
        {"prompt": [[1, 2]]},
        {"prompt": "a", "n": 1, "best_of": 1, "use_beam_search": False, "prompt_logprobs": None},
        {"prompt": "a", "n": None, "echo": False, "logprobs": 3},
        {"prompt": "a", "echo": True},
        {"messages": [], "logprobs": True, "top_logprobs": 2},
    ],
)
def test_one_sequence_of_one_prompt_is_disaggregated(body: dict[str, Any]) -> None:
    """Whatever makes one engine request and needs no prompt logprobs may use two nodes."""
    assert reason(**body) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "a", "n": 2}, classify.SEVERAL_SEQUENCES),
        ({"messages": [], "n": 2}, classify.SEVERAL_SEQUENCES),
        ({"prompt": "a", "n": 1.0}, classify.SEVERAL_SEQUENCES),
        ({"prompt": "a", "best_of": 2}, classify.BEST_OF),
        ({"prompt": "a", "use_beam_search": True}, classify.BEAM_SEARCH),
        ({"prompt": "a", "use_beam_search": "yes"}, classify.BEAM_SEARCH),
        ({"prompt": "a", "prompt_logprobs": 0}, classify.PROMPT_LOGPROBS),
        ({"prompt": "a", "echo": True, "logprobs": 1}, classify.PROMPT_LOGPROBS),
        ({"messages": [], "echo": True}, classify.PROMPT_LOGPROBS),
        ({"prompt_embeds": "AAAA"}, classify.EMBEDDINGS),
        ({"prompt": ["a", "b"]}, classify.BATCH),
        ({"prompt": [[1], [2]]}, classify.BATCH),
    ],
)
def test_what_the_protocol_does_not_cover_stays_on_the_decode_node(body: dict[str, Any], expected: str) -> None:
    """Each kind of request that is computed on one node says why."""
    assert reason(**body) == expected


def test_white_space_does_not_hide_a_batch() -> None:
    """A batch is one however its JSON is laid out."""
    fields = split(b'{"prompt": [' + b" \n" * 500 + b'"a", "b"]}')

    assert reason_for_local(fields) == classify.BATCH
