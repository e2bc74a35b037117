from typing import Any

import pytest

from baton.loadtest.traffic.recorded import (
    CONVERSATION,
    Scale,
    TracedRequest,
    TraceReplay,
    pieces,
    read_trace,
)
from tests.unit.loadtest.making import making


def traced(timestamp: int, tokens: int, *blocks: int, output: int = 100) -> TracedRequest:
    return TracedRequest(timestamp=timestamp, input_length=tokens, output_length=output, hash_ids=blocks)


def replay(*requests: TracedRequest, chat: bool = False, seed: int = 1, **scale: Any) -> TraceReplay:
    return TraceReplay(making(chat=chat, seed=seed), requests, Scale(**scale))


def tokens(source: TraceReplay, index: int) -> list[Any]:
    """A prompt's ids, or words."""
    prompt: Any = next(source.script(index)).prompt
    return prompt[0]["content"].split(" ") if source.making.chat else list(prompt)


@pytest.mark.parametrize("chat", [False, True])
def test_a_partial_block_is_the_whole_ones_beginning(chat: bool) -> None:
    """The prompt that goes on where the other ended shares everything with it, with any seed, which decides all tokens."""
    source = replay(traced(0, 600, 0, 1), traced(0, 900, 0, 1), chat=chat)

    assert tokens(source, 0) == tokens(source, 1)[:600]
    assert tokens(replay(*source.requests, chat=chat), 0) == tokens(source, 0)
    assert tokens(replay(*source.requests, chat=chat, seed=2), 0) != tokens(source, 0)


def test_a_cap_keeps_the_beginning() -> None:
    """Sharing up to the cap is as before; one at a block's end leaves no empty piece."""
    requests = (traced(0, 1600, 0, 1, 2, 3), traced(0, 1600, 0, 1, 8, 9))
    whole, capped = replay(*requests), replay(*requests, max_input_tokens=700, max_output_tokens=30)

    assert tokens(capped, 0) == tokens(whole, 0)[:700] == tokens(capped, 1)
    assert next(capped.script(0)).input_tokens == 700
    assert next(capped.script(0)).output_tokens == 30
    assert pieces(traced(0, 1600, 0, 1, 2, 3), 0, Scale(max_input_tokens=512)) == [("0", 512)]


def test_scaled_lengths_keep_the_sharing() -> None:
    """An eighth: blocks of 64 tokens, and the rest of 64 becomes 8. Nothing is scaled to nothing."""
    source = replay(traced(0, 1088, 0, 1, 2), traced(0, 1024, 0, 7), length=1 / 8)
    one, other = tokens(source, 0), tokens(source, 1)

    assert (len(one), len(other)) == (64 + 64 + 8, 128)
    assert one[:64] == other[:64]
    assert one[64:128] != other[64:]
    assert next(source.script(0)).output_tokens == 12
    least = next(replay(traced(0, 3, 0, output=2), length=0.001).script(0))
    assert (least.input_tokens, least.output_tokens) == (1, 1)


def test_blocks_without_an_id_are_a_requests_own() -> None:
    """The length is right, and nothing is shared by accident. Warming up uses blocks of its own, too."""
    source = replay(traced(0, 1024, 0), traced(0, 1024, 0))

    assert len(tokens(source, 0)) == len(tokens(source, -1)) == 1024
    assert tokens(source, -1)[:100] not in (tokens(source, 0)[:100], tokens(source, 1)[:100])
    assert tokens(source, 0)[512:] != tokens(source, 1)[512:]


def test_times_begin_at_0_and_are_scaled() -> None:
    """From ms to s; half of them is twice as fast."""
    assert replay(traced(2000, 5, 0), traced(3000, 5, 0), traced(7000, 5, 0), time=0.5).due_s() == [0.0, 0.5, 2.5]


def test_the_recorded_trace_shares_as_its_ids_say() -> None:
    """For each of the first 40 prompts, compared with every earlier one: shared tokens = shared ids × 512, or a prompt's end."""
    recorded = read_trace(CONVERSATION)[:40]
    source = replay(*recorded, length=1 / 16)
    prompts = [tokens(source, index) for index in range(40)]
    block = source.scale.block_tokens

    for at, (request, prompt) in enumerate(zip(recorded, prompts, strict=True)):
        for earlier in range(at):
            ids = _common(request.hash_ids, recorded[earlier].hash_ids)
            expected = min(ids * block, len(prompt), len(prompts[earlier]))
            assert 0 <= _common(prompt, prompts[earlier]) - expected < 8  # tokens may be equal by chance


def _common(one: Any, other: Any) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
