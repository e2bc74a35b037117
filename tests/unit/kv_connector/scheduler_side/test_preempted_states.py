"""A prompt that is preempted on P with states in the prefix cache: it starts again from one of them, and nothing of that is sent.

With vLLM's own block manager. Its scheduler frees a preempted request's blocks and counts its tokens as not computed; the request
comes back with what is cached of it, to the V1 runner as one that it knows, to the V2 runner as a new one.
"""

from typing import Any

import pytest
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

from baton.contracts.kv_transfer import SINGLE
from baton.kv_connector.handoff.metadata import PrefillStep
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from tests.support.async_schedules.layouts import CHUNK_TOKENS, FALCON_H1_CACHED, request
from tests.support.ranks import BLOCK_TOKENS, SECRET
from tests.unit.kv_connector.scheduler_fakes import step_output

TOKENS, CHUNK = 6 * BLOCK_TOKENS - 5, CHUNK_TOKENS


class Node:
    """P's scheduler: vLLM's block manager, and our side, with the first chunk of a prompt."""

    def __init__(self) -> None:
        self.manager: KVCacheManager = FALCON_H1_CACHED.manager()
        self.side = PrefillScheduler(SECRET, BLOCK_TOKENS, groups=FALCON_H1_CACHED.groups)
        self.side.bind_pool(self.manager.block_pool)
        self.whole = self.manager.block_pool.get_num_free_blocks()
        self.prompt = prompt_of("r")
        self.side.add_request(self.prompt)
        self.first = self.side.take_step(step_output(new=[self.start(self.prompt, CHUNK)]))

    def free_blocks(self) -> int:
        return int(self.manager.block_pool.get_num_free_blocks())

    def start(self, prompt: Request, tokens: int) -> tuple[str, Any, int, int]:
        """Schedule a prompt's first chunk, behind what is cached of it."""
        self.manager.new_step_starts()
        found, hit, _ = self.manager.get_computed_blocks(prompt)
        tokens = min(tokens, prompt.num_prompt_tokens - hit)
        assert self.manager.allocate_slots(prompt, tokens, hit, found) is not None
        prompt.num_computed_tokens = hit + tokens
        return prompt.request_id, self.manager.get_block_ids(prompt.request_id), hit, tokens

    def go_on(self, prompt: Request) -> PrefillStep:
        """Schedule the rest of a prompt."""
        self.manager.new_step_starts()
        computed = prompt.num_computed_tokens
        given = self.manager.allocate_slots(prompt, prompt.num_prompt_tokens - computed)
        assert given is not None
        prompt.num_computed_tokens = prompt.num_prompt_tokens
        chunk = prompt.request_id, given.get_block_ids(), computed, prompt.num_prompt_tokens - computed
        return self.side.take_step(step_output(cached=[chunk]))

    def preempt(self, prompt: Request) -> None:
        self.manager.free(prompt)
        prompt.num_computed_tokens = 0


def prompt_of(name: str) -> Request:
    return request(name, range(TOKENS), "prefill", SINGLE)


@pytest.mark.parametrize("runner", ["V1", "V2"])
@pytest.mark.parametrize("is_same_step", [False, True], ids=["in a later step", "in the same step"])
@pytest.mark.parametrize("is_complete", [False, True], ids=["while it computes", "its last chunk issued"])
def test_what_starts_again_from_a_cached_state_is_not_sent(
    runner: str, *, is_same_step: bool, is_complete: bool
) -> None:
    """The transfer is void at once, stays so however the prompt comes back, and no block of it is held (I2)."""
    node = Node()
    prompt = node.prompt
    assert [started.request_id for started in node.first.started] == [prompt.request_id]
    if is_complete:
        assert node.go_on(prompt).progress[0].ready_blocks == -(-TOKENS // BLOCK_TOKENS)
    node.preempt(prompt)

    preempted = {prompt.request_id}
    steps = [] if is_same_step else [node.side.take_step(step_output(preempted=preempted))]
    again = node.start(prompt, TOKENS)
    new, cached = ([again], []) if runner == "V2" else ([], [again])
    steps.append(node.side.take_step(step_output(new, cached, preempted if is_same_step else set())))

    assert again[2] >= CHUNK  # behind a state that is cached
    assert [step.voids for step in steps if step.voids] == [[(prompt.request_id, "preempted")]]
    assert all(not (step.started or step.progress) for step in steps)
    assert not node.side.finish_request(prompt, aborted=False)
    node.manager.free(prompt)
    assert node.free_blocks() == node.whole


def test_the_block_of_a_state_comes_back_only_behind_the_step_that_voids_it() -> None:
    """What D may read is ours as well from the last chunk on: the step that preempts the prompt gives it to no other."""
    node = Node()
    prompt = node.prompt
    node.go_on(prompt)
    state = node.manager.get_block_ids(prompt.request_id)[0][-1]

    node.preempt(prompt)
    held = node.manager.block_pool.blocks[state].ref_cnt
    node.side.take_step(step_output(preempted={prompt.request_id}))

    assert (held, node.manager.block_pool.blocks[state].ref_cnt) == (1, 0)


def test_another_prompt_that_goes_on_from_the_states_of_a_preempted_one_is_sent_whole() -> None:
    """They are in the cache still, and the state that D reads is the other prompt's own, in a block of its own."""
    node, other = Node(), prompt_of("s")
    prompt = node.prompt
    node.side.add_request(other)
    node.go_on(prompt)
    state = node.manager.get_block_ids(prompt.request_id)[0][-1]
    node.preempt(prompt)

    step = node.side.take_step(step_output(new=[node.start(other, TOKENS)], preempted={prompt.request_id}))

    assert step.voids == [(prompt.request_id, "preempted")]
    assert [(each.request_id, each.ready_blocks) for each in step.progress] == [(other.request_id, 6)]
    assert step.started[0].prompt.cached_tokens >= CHUNK
    assert step.progress[0].new_blocks[0][-1] not in (0, state)
    assert node.side.finish_request(other, aborted=False)
