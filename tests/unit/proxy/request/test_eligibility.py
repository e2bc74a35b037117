from typing import Any

import msgspec
import pytest

from baton.proxy.request import eligibility
from baton.proxy.request.eligibility import count_answers, fetches_items, has_several_prompts, reason_for_local
from baton.proxy.request.fields import split

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
FETCHED = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}


def reason(**body: Any) -> str | None:
    return reason_for_local(split(msgspec.json.encode(body)))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Any number of prompts and answers: one transfer for each.
        ({"prompt": "a"}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": ["a"]}, None),
        ({"prompt": [[1, 2]]}, None),
        ({"prompt": "a", "n": 1, "best_of": 1, "use_beam_search": False, "prompt_logprobs": None}, None),
        ({"prompt": "a", "n": None, "echo": False, "logprobs": 3}, None),
        ({"prompt": "a", "echo": True}, None),
        ({"messages": [], "logprobs": True, "top_logprobs": 2}, None),
        ({"prompt": "a", "n": 2}, None),
        ({"messages": [], "n": 2}, None),
        ({"prompt": ["a", "b"]}, None),
        ({"prompt": [[1], [2]], "n": 3}, None),
        ({"prompt": "a", "best_of": 2}, eligibility.BEST_OF),
        ({"prompt": "a", "use_beam_search": True}, eligibility.BEAM_SEARCH),
        ({"prompt": "a", "use_beam_search": "yes"}, eligibility.BEAM_SEARCH),
        ({"prompt": "a", "prompt_logprobs": 0}, eligibility.PROMPT_LOGPROBS),
        ({"prompt": "a", "echo": True, "logprobs": 1}, eligibility.PROMPT_LOGPROBS),
        ({"messages": [], "echo": True}, eligibility.PROMPT_LOGPROBS),
        ({"prompt_embeds": "AAAA"}, eligibility.EMBEDDINGS),
        ({"prompt": []}, eligibility.NO_PROMPT),
        ({"messages": [{"content": [{"type": "video_url", "video_url": {"url": "x"}}]}]}, eligibility.MEDIA),
        ({"messages": [{"content": [{"video_url": {"url": "x"}}]}]}, eligibility.MEDIA),
        ({"messages": [{"content": [{"type": "image_pil", "image_pil": "x"}]}]}, eligibility.MEDIA),
        ({"messages": [{"content": [IMAGE | {"uuid": "mine"}]}]}, eligibility.MEDIA),
        ({"messages": [{"content": [IMAGE, {"type": "file", "file": {}}]}]}, eligibility.MEDIA),
        ({"messages": [{"content": [{"type": "image_embeds", "image_embeds": "x"}]}]}, eligibility.EMBEDDINGS),
        ({"messages": [{"content": [{"audio_embeds": "x"}]}]}, eligibility.EMBEDDINGS),
        ({"messages": [{"content": [{"type": "prompt_embeds", "data": "x"}]}]}, eligibility.EMBEDDINGS),
        ({"input": [{"content": [{"type": "input_file", "file_id": "x"}]}]}, eligibility.MEDIA),
    ],
)
def test_what_the_protocol_does_not_cover_stays_on_the_decode_node(body: dict[str, Any], expected: str | None) -> None:
    assert reason(**body) == expected


@pytest.mark.parametrize(
    ("body", "fetched"),
    [
        ({"messages": [{"content": [IMAGE]}]}, False),
        ({"messages": [{"content": [IMAGE, FETCHED]}]}, True),
        ({"messages": [{"content": [{"image_url": "https://a/b.png"}]}]}, True),
        ({"messages": [{"content": [{"type": "audio_url", "audio_url": {"url": "file:///b.wav"}}]}]}, True),
        ({"messages": [{"content": [{"type": "image", "source": {"type": "url", "url": "https://a/b"}}]}]}, True),
        ({"messages": [{"content": [{"type": "image", "source": {"type": "base64", "data": "AA"}}]}]}, False),
        ({"messages": [{"content": [{"type": "input_audio", "input_audio": {"data": "AA"}}]}]}, False),
        ({"input": [{"content": [{"type": "input_image", "image_url": "https://a/b.png"}]}]}, True),
        ({"input": [{"content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]}]}, False),
        ({"messages": [{"content": [{"type": "tool_use", "input": {"url": "https://a", "uuid": "b"}}]}]}, False),
    ],
)
def test_images_and_sound_are_handed_over(body: dict[str, Any], fetched: bool) -> None:
    """Those at an address are fetched by each node, which may find something else there."""
    assert reason(**body) is None
    assert fetches_items(split(msgspec.json.encode(body))) is fetched


def test_words_about_videos_are_words() -> None:
    """Only a part of a prompt can be a video."""
    said = '{"type": "video_url", "video_url": {"url": "x"}}'

    assert reason(messages=[{"content": said}, {"content": [{"type": "text", "text": said}]}]) is None
    assert reason(messages=[{"content": "a"}], tools=[{"function": {"parameters": {"type": "video"}}}]) is None


@pytest.mark.parametrize(
    ("prompt", "several"),
    [
        (b'"a"', False),
        (b"[1, 2]", False),
        (b'["a"]', False),
        (b"[[1]]", False),
        (b"[ ]", False),
        (b'["a", "a"]', True),
        (b"[[1], [2]]", True),
        (b"[" + b" \n" * 500 + b'"a", "b"]', True),
    ],
)
def test_a_batch_is_one_however_its_json_is_laid_out(prompt: bytes, several: bool) -> None:
    """Each of its prompts needs a transfer of its own."""
    assert has_several_prompts(split(b'{"prompt": ' + prompt + b"}")) is several


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        ({}, 1),
        ({"n": None}, 1),
        ({"n": 1}, 1),
        ({"n": 12}, 12),
        *(({"n": odd}, None) for odd in (0, -1, 2.0, "2", True, [2], 10_000)),
    ],
)
def test_answers_are_counted_where_their_number_is_plain(body: dict[str, Any], answers: int | None) -> None:
    """Of anything else a node may make a number, or refuse it."""
    assert count_answers(split(msgspec.json.encode(body))) == answers
