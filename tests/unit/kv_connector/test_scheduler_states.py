"""Both scheduler sides with recurrent layers: the prompt that P computes, and where a state stands among the blocks."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.layout.groups import CACHED_STATES, STATE, Group
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler, shorten
from baton.kv_connector.scheduler_side.prompt import prompt_hash
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, FakePool, MakeDecode, request, step_output

GROUPS = (Group(), STATE)  # of blocks of 16 tokens, and of one block
DRAFTING = (Group(), STATE._replace(drafts=2))  # of one block, and of two for drafted tokens
CACHED = (Group(), CACHED_STATES)  # with vLLM's prefix cache on


def held(pool: FakePool, references: int = 1) -> list[int]:
    """Blocks with so many references: that of a request, and ours."""
    return [block.block_id for block in pool.blocks if block.ref_cnt == references]


def on_prefill(tokens: int, **sampling: Any) -> Request:
    """A request of vLLM's own, since a good part of it is changed."""
    made = Request("r1", list(range(tokens)), SamplingParams(**{"max_tokens": 5} | sampling), None)
    made.kv_transfer_params = request("prefill", tokens).kv_transfer_params
    return made


def prefill(pool: FakePool | None = None, groups: Sequence[Group] = GROUPS) -> PrefillScheduler:
    """A prefill node's scheduler side."""
    made = PrefillScheduler(SECRET, BLOCK_TOKENS, groups=groups)
    made.bind_pool(pool or FakePool(33))
    return made


@pytest.mark.parametrize("length", [40, 2])
def test_p_computes_all_tokens_but_the_last(length: int) -> None:
    """D needs the state after those; another token of P's would be computed over it. The prompt is known by all (I7)."""
    made, tokens = on_prefill(length), list(range(length))
    made.prompt_token_ids = tokens
    made.mm_features = [SimpleNamespace(identifier="i", mm_position=SimpleNamespace(offset=0, length=length - 1))]
    whole = prompt_hash(made)
    side = prefill()

    side.add_request(made)
    (started,) = side.take_step(step_output(new=[("r1", ([1, 2, 3], [9]), 0, length - 1)])).started

    assert (made.num_prompt_tokens, made.num_tokens, made.max_tokens) == (length - 1, length - 1, 1)
    assert made.prompt_token_ids == list(made.all_token_ids) == list(range(length - 1))
    assert len(tokens) == length  # another holder of the list counts as before
    assert (started.prompt.tokens, started.prompt.prompt_hash) == (length, whole)


def test_the_last_token_is_named_when_it_is_taken() -> None:
    assert shorten(on_prefill(3)) == (2,)


def test_an_adapter_that_has_not_changed_is_known_still() -> None:
    """The prompt is named once more when it is scheduled: as a whole."""
    made, side = on_prefill(40), prefill()
    made.lora_request = SimpleNamespace(lora_name="a", lora_int_id=1, lora_path="a")
    side._adapters = SimpleNamespace(name_of=lambda adapter: adapter.lora_name)  # type: ignore[assignment]

    side.add_request(made)
    found = side.take_step(step_output(new=[("r1", ([1, 2, 3], [9]), 0, 39)]))

    assert (len(found.started), found.abandoned) == (1, [])


@pytest.mark.parametrize("why", ["an ordinary request", "the decode leg", "no recurrent layers", "a single token"])
def test_other_prompts_are_left_alone(why: str) -> None:
    """What is not to be handed over from here, and a prompt of which D needs nothing."""
    tokens = 1 if why == "a single token" else 40
    made = on_prefill(tokens)
    if why == "an ordinary request":
        made.kv_transfer_params = None
    elif why == "the decode leg":
        made.kv_transfer_params = request("decode", 40).kv_transfer_params
    side = prefill() if why != "no recurrent layers" else PrefillScheduler(SECRET, BLOCK_TOKENS)

    side.add_request(made)

    assert (made.num_prompt_tokens, made.prompt_token_ids, made.max_tokens) == (tokens, [*range(tokens)], 5)
    if why == "a single token":
        (progress,) = side.take_step(step_output(new=[("r1", ([1], [9]), 0, 1)])).progress
        assert progress.ready_blocks == 1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"prompt_logprobs": 1}, "prompt logprobs need the whole prompt"),
        ({"ends_in_image": True}, "the prompt ends within an image"),
    ],
    ids=["prompt logprobs", "an image at the end"],
)
def test_a_prompt_that_needs_its_last_token_is_not_handed_over(changed: dict[str, Any], words: str) -> None:
    """P says so at once, and computes it whole."""
    made = on_prefill(40, **{name: value for name, value in changed.items() if name == "prompt_logprobs"})
    if "ends_in_image" in changed:
        place = SimpleNamespace(offset=30, length=10)
        made.mm_features = [SimpleNamespace(identifier="i", mm_position=place)]
    side = prefill()

    side.add_request(made)
    found = side.take_step(step_output(new=[("r1", ([1, 2, 3], [9]), 0, 40)]))

    assert made.num_prompt_tokens == 40
    assert [abandoned.reason for abandoned in found.abandoned if words in abandoned.reason]
    assert (found.started, found.progress) == ([], [])


@pytest.mark.parametrize(("groups", "blocks"), [(GROUPS, [9]), (DRAFTING, [9, 10, 11])], ids=["", "beside drafts"])
def test_the_state_stands_where_the_last_chunk_ends(groups: Sequence[Group], blocks: list[int]) -> None:
    """So it is ready with the last chunk alone, and held until it has been sent (I1, I2). Blocks for drafts are neither."""
    pool, made = FakePool(33), on_prefill(50)
    side = prefill(pool, groups)
    side.add_request(made)

    first = side.take_step(step_output(new=[("r1", ([1, 2], blocks), 0, 32)]))
    between = side.take_step(step_output(cached=[("r1", None, 32, 0)]))
    last = side.take_step(step_output(cached=[("r1", ([3, 4], []), 32, 17)]))

    assert first.progress == [Progress("r1", [[1, 2], [0, 0, 0, 9]], 2)]
    assert between.progress == [Progress("r1", [], 2)]
    assert last.progress == [Progress("r1", [[3, 4], []], 4)]
    assert held(pool) == [9]
    assert side.finish_request(made, aborted=False)
    side.update({"r1"})
    assert held(pool) == []


@pytest.mark.parametrize("tokens", [50, 49], ids=["within a block", "all but the last token end a block"])
def test_a_state_in_the_prefix_cache_stands_where_vllm_has_put_it(tokens: int) -> None:
    """The prompt's first block and its state were cached; states of earlier ends of blocks are not ready with them, and not held."""
    pool, made = FakePool(33), on_prefill(tokens)
    side = prefill(pool, CACHED)
    side.add_request(made)

    first = side.take_step(step_output(new=[("r1", ([1, 2], [9, 10]), 16, 16)]))
    second = side.take_step(step_output(cached=[("r1", ([3], [11]), 32, 16)]))
    last = side.take_step(step_output(cached=[("r1", ([4], [12]), 48, 1)])) if tokens == 50 else second

    assert [started.prompt.cached_tokens for started in first.started] == [16]
    assert first.progress == [Progress("r1", [[1, 2], [9, 10]], 2)]
    assert second.progress == [Progress("r1", [[3], [11]], 3 if tokens == 50 else 4)]
    assert last.progress[-1].ready_blocks == 4
    assert held(pool) == [12 if tokens == 50 else 11]


@pytest.mark.parametrize(
    ("groups", "tokens", "local", "attention", "states", "wanted"),
    [
        (GROUPS, 50, 0, 4, 1, [[1, 2, 3, 4], [0, 0, 0, 5]]),
        (GROUPS, 49, 0, 3, 1, [[1, 2, 3, 0], [0, 0, 4, 0]]),  # the last token begins a block, which is D's to fill
        (GROUPS, 2, 0, 1, 1, [[1], [2]]),
        (DRAFTING, 50, 0, 4, 3, [[1, 2, 3, 4], [0, 0, 0, 5]]),  # the first step reads the first one
        (CACHED, 50, 32, 4, 1, [[3, 4], [0, 5]]),  # the attention's first blocks are here; no state is
    ],
)
def test_d_asks_for_the_state_before_the_last_token(
    make_decode: MakeDecode,
    *,
    groups: Sequence[Group],
    tokens: int,
    local: int,
    attention: int,
    states: int,
    wanted: list[list[int]],
) -> None:
    """In lists of one length, the state where P has it; what is asked for is held (I3), and nothing else."""
    side, made = make_decode(groups=groups), request("decode", tokens)
    pool: Any = side._ledger.pool
    side.add_request(made)

    assert side.match(made, local) == (tokens - 1 - local, True)
    unused = [pool.null_block] * 3 if groups is CACHED else []
    side.allocated(made, [pool.allocate(attention), unused + pool.allocate(states)], tokens - 1 - local)
    (reserved,) = side.take_step(step_output()).reserved

    assert (reserved.wish.tokens, reserved.wish.from_token) == (tokens, local)
    assert reserved.wish.blocks == wanted
    assert held(pool, 2) == [block for table in wanted for block in table if block]


@pytest.mark.parametrize(
    ("groups", "tokens", "comes"), [(GROUPS, 1, 0), (DRAFTING, 1, 0), (DRAFTING, 2, 0), (DRAFTING, 3, 2)]
)
def test_a_prompt_that_is_too_short_is_ds_own(
    make_decode: MakeDecode, groups: Sequence[Group], tokens: int, comes: int
) -> None:
    """There is no state before one token; beside drafts vLLM fills a prompt of one token up with placeholders when P is busy."""
    side, made = make_decode(groups=groups), request("decode", tokens)
    side.add_request(made)

    assert side.match(made, 0) == (comes, comes > 0)


def test_another_answer_to_a_prompt_does_not_wait_for_a_state_that_is_not_cached(
    make_decode: MakeDecode,
) -> None:
    """The prefix cache will have the prompt's blocks, and no state at their end."""
    side = make_decode(groups=CACHED, has_prefix_cache=True)
    for name in ("r1", "r2"):
        side.add_request(request("decode", 50, request_id=name))

    assert side.match(request("decode", 50, request_id="r2"), 0) == (0, False)
