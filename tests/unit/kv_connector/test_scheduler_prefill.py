"""The prefill node's scheduler side: what the workers are told about each step."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.contracts.kv_transfer import Grid, Grids
from baton.kv_connector.handoff.metadata import Progress
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.scheduler_side.prompt import ADAPTER_CHANGED
from baton.kv_connector.vllm_compat.lora import Adapters
from baton.kv_connector.vllm_compat.media import PRUNING, Media
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, FakePool, FakeRequest, request, step_output


class Changing(Adapters):
    """Adapters of which nothing is known any more from some moment on."""

    changed = False

    def name_of(self, adapter: Any) -> str:
        return f"{adapter.lora_name} {self.changed}"


def scheduler(*arrived: Any) -> PrefillScheduler:
    """A prefill node's scheduler side at which these requests have arrived."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS)
    for each in arrived:
        side.add_request(each)
    return side


def test_a_prompt_in_one_chunk_is_ready_as_a_whole() -> None:
    """The last, partly filled block is pushed with the final chunk."""
    side = scheduler(request("prefill", 40))

    step = side.take_step(step_output(new=[("r1", [5, 6, 7], 0, 40)]))

    assert [started.request_id for started in step.started] == ["r1"]
    assert step.started[0].prompt.blocks == 3
    assert step.progress == [Progress("r1", [[5, 6, 7]], 3)]


def test_a_prompt_with_media_is_given_up_at_once_where_they_are_not_handed_over() -> None:
    """P computes it for its own token, and D for itself."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS, media=Media(b"d", PRUNING))
    item = SimpleNamespace(identifier="i", mm_position=SimpleNamespace(offset=3, length=5))

    side.add_request(request("prefill", 40, mm_features=[item]))
    step = side.take_step(step_output(new=[("r1", [5, 6, 7], 0, 40)]))

    assert [abandoned.reason for abandoned in step.abandoned] == [PRUNING]
    assert step.started == []


def test_a_partial_block_at_a_chunk_boundary_waits_until_it_is_complete() -> None:
    """I1: 24 of 40 tokens complete one block of 16, the second is being filled."""
    side = scheduler(request("prefill", 40))

    first = side.take_step(step_output(new=[("r1", [5, 6], 0, 24)]))
    second = side.take_step(step_output(cached=[("r1", [7], 24, 16)]))

    assert first.progress == [Progress("r1", [[5, 6]], 1)]
    assert second.progress == [Progress("r1", [[7]], 3)]
    assert second.started == []


def test_prefix_hit_blocks_are_ready_with_the_step_that_first_schedules_them() -> None:
    """E5: they are named in the first step, ready with its events and not before; the prompt says how many tokens were cached."""
    side = scheduler(request("prefill", 60))

    first = side.take_step(step_output(new=[("r1", [1, 2, 9], 32, 8)]))
    second = side.take_step(step_output(cached=[("r1", [10], 40, 20)]))

    assert first.progress == [Progress("r1", [[1, 2, 9]], 2)]
    assert [started.prompt.cached_tokens for started in first.started] == [32]
    assert second.started == []


def test_a_finished_prompt_keeps_its_blocks() -> None:
    """A request whose first token was its last leaves a complete prompt, which the workers must be told to hold."""
    prompt = request("prefill", 16)
    side = scheduler(prompt)
    side.take_step(step_output(new=[("r1", [5], 0, 16)]))

    assert side.finish_request(prompt, aborted=False) is True
    assert side.take_step(step_output()).holds == ["r1"]


@pytest.mark.parametrize("scheduled", [24, 40], ids=["the first chunk", "the last one"])
def test_an_aborted_prompt_gives_its_blocks_back_and_voids_the_epoch(scheduled: int) -> None:
    """I2: nothing of it may be committed any more, however much of it was scheduled: vLLM frees the blocks at once."""
    prompt = request("prefill", 40)
    side = scheduler(prompt)
    side.take_step(step_output(new=[("r1", [5, 6], 0, scheduled)]))

    assert side.finish_request(prompt, aborted=True) is False
    assert side.take_step(step_output()).voids == [("r1", "aborted")]


def test_a_prompt_aborted_while_it_queued_is_abandoned_by_name() -> None:
    """D may have reserved blocks for it, and would wait for a prompt that never starts."""
    prompt = request("prefill", 40)
    side = scheduler(prompt)

    assert side.finish_request(prompt, aborted=True) is False

    step = side.take_step(step_output())
    assert [transfer_id for transfer_id, *_ in step.abandoned] == ["a" * 32]
    assert step.voids == []


@pytest.mark.parametrize("among", ["cached", "new"])
def test_a_preempted_prompt_is_voided_in_the_step_that_may_reuse_its_blocks(among: str) -> None:
    """E7: and its second run, which the V2 runner has among new requests, is an ordinary one, whose blocks are not pushed."""
    side = scheduler(request("prefill", 40))
    side.take_step(step_output(new=[("r1", [5, 6], 0, 24)]))

    step = side.take_step(step_output(new=[], preempted={"r1"}))
    again = [("r1", [8, 9, 10], 0, 40)]
    later = side.take_step(step_output(new=again) if among == "new" else step_output(cached=again))

    assert step.voids == [("r1", "preempted")]
    assert (later.started, later.progress) == ([], [])


def test_a_request_without_signed_parameters_is_none_of_our_business() -> None:
    """No start, no progress, no hold."""
    side = scheduler()
    plain = FakeRequest("r1", list(range(40)), {"baton": {"v": 2, "id": "a" * 32, "role": "prefill", "sig": "x"}})
    side.add_request(plain)

    step = side.take_step(step_output(new=[("r1", [5, 6, 7], 0, 40)]))

    assert (step.started, step.progress) == ([], [])
    assert side.finish_request(plain, aborted=False) is False


def test_refused_parameters_are_counted_by_kind() -> None:
    """The second lock behind the HTTP gate: another cluster's signature, another version, no parameters of ours."""
    side = scheduler()
    signed = request("prefill", 40).kv_transfer_params
    forged = {"baton": signed["baton"] | {"sig": "0" * 64}}
    for number, params in enumerate((forged, {"baton": signed["baton"] | {"v": 1}}, {"baton": {}}, {}, signed)):
        side.add_request(FakeRequest(f"r{number}", list(range(40)), params))
    side.bind_pool(FakePool(9))

    assert side.snapshot()["refused"] == {"bad_signature": 1, "malformed_params": 1, "params_version": 2}
    assert len(side.snapshot()["transfers"]) == 1


def test_a_transfer_id_serves_one_prompt_at_a_time() -> None:
    """Another prompt is an ordinary request and holds nothing; when the first has gone, the id may be used again."""
    side = scheduler()
    side.bind_pool(FakePool(9))
    first, other = request("prefill", 16), request("prefill", 17, request_id="r2")
    side.add_request(first)
    side.add_request(other)
    side.take_step(step_output(new=[("r1", [5], 0, 16), ("r2", [6], 0, 17)]))
    assert side.finish_request(first, aborted=False) is True
    assert side.finish_request(other, aborted=False) is False
    assert side.snapshot()["refused"] == {"reused_id": 1}

    side.add_request(other)
    assert side.snapshot()["refused"] == {"reused_id": 2}, "the first is held for its decode node"
    side.update({"r1"})
    side.add_request(other)
    side.finish_request(other, aborted=True)
    side.add_request(first)

    assert side.snapshot()["refused"] == {"reused_id": 2}


def test_a_prompt_that_stands_twice_in_a_batch_is_transferred_once() -> None:
    """The second one is computed from the prefix cache and holds nothing; each prompt names its group."""
    side = scheduler()
    side.bind_pool(FakePool(9))
    for name, tokens in (("a", 16), ("b", 17), ("c", 16)):
        side.add_request(request("prefill", tokens, request_id=name, several=True))

    step = side.take_step(step_output(new=[("a", [5], 0, 16), ("b", [6, 7], 0, 17), ("c", [5], 0, 16)]))

    assert [started.request_id for started in step.started] == ["a", "b"]
    assert {started.group for started in step.started} == {"a" * 32}
    assert len({started.transfer_id for started in step.started} | {"a" * 32}) == 3
    assert side.snapshot()["refused"] == {}


def test_each_answer_to_a_prompt_may_have_a_transfer() -> None:
    """The first one has the proxy's name for it, by which the others are cancelled with it."""
    side = scheduler()
    side.bind_pool(FakePool(9))
    for choice, name in enumerate("ab"):
        side.add_request(request("prefill", 20, request_id=name, choices=True, choice=choice))

    started = side.take_step(step_output(new=[("a", [5, 6], 0, 20), ("b", [5, 7], 16, 4)])).started

    assert [one.transfer_id == "a" * 32 for one in started] == [True, False]
    assert [one.group for one in started] == ["", "a" * 32]


def test_an_adapter_that_changed_in_the_queue_has_its_prompt_given_up() -> None:
    """I7: it was named by files that may not be those that compute it. Other prompts are none of its concern."""
    adapters = Changing()
    side = PrefillScheduler(SECRET, BLOCK_TOKENS, adapters=adapters)
    tuned = request("prefill", 16, lora_request=SimpleNamespace(lora_name="tuned"))
    side.add_request(tuned)
    side.add_request(request("prefill", 16, request_id="r2", transfer_id="b" * 32))

    adapters.changed = True
    step = side.take_step(step_output(new=[("r1", [5], 0, 16), ("r2", [6], 0, 16)]))

    assert [(each.transfer_id, each.reason) for each in step.abandoned] == [("a" * 32, ADAPTER_CHANGED)]
    assert [started.request_id for started in step.started] == ["r2"]
    assert [progress.request_id for progress in step.progress] == ["r2"]
    assert side.finish_request(tuned, aborted=False) is False


def test_a_prompt_for_a_node_of_another_size_is_given_up_at_once() -> None:
    """The proxy's knowledge is older than this process: the decode node, which waits, is told."""
    side = scheduler(request("prefill", 40, grids=Grids(prefill=Grid(tp=2))))

    step = side.take_step(step_output(new=[("r1", [5, 6, 7], 0, 40)]))

    assert [each.transfer_id for each in step.abandoned] == ["a" * 32]
    assert (step.started, step.progress) == ([], [])
