"""The prefill node's scheduler side: what the workers are told about each step."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.contracts.kv_transfer import Grid, Grids
from baton.kv_connector.handoff.outgoing import Progress
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


def scheduler(*arrived: Any, **more: Any) -> PrefillScheduler:
    """A prefill node's scheduler side at which these requests have arrived."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS, **more)
    side.bind_pool(FakePool(9))
    for each in arrived:
        side.add_request(each)
    return side


ITEM = SimpleNamespace(identifier="i", mm_position=SimpleNamespace(offset=3, length=5))


@pytest.mark.parametrize(
    ("said", "reason"),
    [({"mm_features": [ITEM]}, PRUNING), ({"grids": Grids(prefill=Grid(tp=2))}, "takes this node for tp=2 pp=1")],
    ids=["media are not handed over here", "the proxy's knowledge is older than this process"],
)
def test_a_prompt_that_cannot_be_handed_over_is_given_up_at_once(said: dict[str, Any], reason: str) -> None:
    """P computes it for its own token, and D, which waits, is told."""
    side = scheduler(request("prefill", 40, **said), media=Media(b"d", PRUNING))

    step = side.take_step(step_output(new=[("r1", [5, 6, 7], 0, 40)]))

    assert [each.transfer_id for each in step.abandoned if reason in each.reason] == ["a" * 32]
    assert (step.started, step.progress) == ([], [])


@pytest.mark.parametrize(
    ("cached", "computed", "begun", "ended"),
    [
        (0, 40, [Progress("r1", [[5, 6, 7]], 3)], []),  # in one chunk: the last, partly filled block too
        (0, 24, [Progress("r1", [[5, 6]], 1)], [Progress("r1", [[7]], 3)]),  # I1: the second block is being filled
        (32, 36, [Progress("r1", [[5, 6, 7]], 2)], [Progress("r1", [[]], 3)]),  # E5: so are blocks of a prefix hit
    ],
)
def test_a_block_is_ready_with_the_chunk_that_completes_it(
    cached: int, computed: int, begun: list[Progress], ended: list[Progress]
) -> None:
    """All are with the last chunk; the prompt says how many tokens were cached."""
    side = scheduler(request("prefill", 40))
    rest = ended[0].new_blocks[0] if ended else []

    first = side.take_step(step_output(new=[("r1", begun[0].new_blocks[0], cached, computed - cached)]))
    second = side.take_step(step_output(cached=[("r1", rest, computed, 40 - computed)]))

    (started,) = first.started
    assert (started.request_id, started.prompt.blocks, started.prompt.cached_tokens) == ("r1", 3, cached)
    assert not started.prompt.is_answer
    assert (first.progress, second.progress, second.started) == (begun, ended, [])


def test_a_finished_prompt_keeps_its_blocks() -> None:
    """A request whose first token was its last leaves a complete prompt, which the workers must be told to hold."""
    prompt = request("prefill", 16)
    side = scheduler(prompt)
    said = {"request_id": "r1", "transfer_id": "a" * 32, "role": "prefill"}
    assert side.snapshot()["transfers"] == [said | {"state": "queued", "blocks_held": 0}]
    side.take_step(step_output(new=[("r1", [5], 0, 16)]))

    assert side.finish_request(prompt, aborted=False) is True
    assert side.take_step(step_output()).holds == ["r1"]
    assert side.snapshot()["totals"] == {"transfers": 1, "completed": 1, "voided": 0}
    assert side.snapshot()["transfers"] == [said | {"state": "held", "blocks_held": 1}]


@pytest.mark.parametrize("scheduled", [0, 24, 40], ids=["in the queue", "the first chunk", "the last one"])
def test_an_aborted_prompt_gives_its_blocks_back_and_voids_the_epoch(scheduled: int) -> None:
    """I2: nothing of it may be committed: vLLM frees the blocks at once. Before its first chunk D knows it by the transfer's id alone."""
    prompt = request("prefill", 40)
    side = scheduler(prompt)
    if scheduled:
        side.take_step(step_output(new=[("r1", [5, 6], 0, scheduled)]))

    assert side.finish_request(prompt, aborted=True) is False

    step = side.take_step(step_output())
    assert step.voids == ([("r1", "aborted")] if scheduled else [])
    assert [transfer_id for transfer_id, *_ in step.abandoned] == ([] if scheduled else ["a" * 32])
    assert side.snapshot()["totals"] == {"transfers": 1, "completed": 0, "voided": int(scheduled > 0)}


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
    plain = FakeRequest("r1", list(range(40)), {"baton": {"v": 2, "id": "a" * 32, "role": "prefill", "sig": "x"}})
    side = scheduler(plain)

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

    assert side.snapshot()["refused"] == {"bad_signature": 1, "malformed_params": 1, "params_version": 2}
    assert len(side.snapshot()["transfers"]) == 1


def test_a_transfer_id_serves_one_prompt_at_a_time() -> None:
    """Another prompt is an ordinary request and holds nothing; when the first has gone, the id may be used again."""
    first, other = request("prefill", 16), request("prefill", 17, request_id="r2")
    side = scheduler(first, other)
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
    batch = (("a", 16), ("b", 17), ("c", 16))
    side = scheduler(*(request("prefill", tokens, request_id=name, several=True) for name, tokens in batch))

    step = side.take_step(step_output(new=[("a", [5], 0, 16), ("b", [6, 7], 0, 17), ("c", [5], 0, 16)]))

    assert [started.request_id for started in step.started] == ["a", "b"]
    assert {started.group for started in step.started} == {"a" * 32}
    assert len({started.transfer_id for started in step.started} | {"a" * 32}) == 3
    assert side.snapshot()["refused"] == {}


def test_each_answer_to_a_prompt_may_have_a_transfer() -> None:
    """The first one has the proxy's name for it, by which the others are cancelled with it."""
    choices = [request("prefill", 20, request_id=name, choices=True, choice=n) for n, name in enumerate("ab")]
    side = scheduler(*choices)

    started = side.take_step(step_output(new=[("a", [5, 6], 0, 20), ("b", [5, 7], 16, 4)])).started

    assert [one.transfer_id == "a" * 32 for one in started] == [True, False]
    assert [one.group for one in started] == ["", "a" * 32]


def test_an_adapter_that_changed_in_the_queue_has_its_prompt_given_up() -> None:
    """I7: it was named by files that may not be those that compute it. Other prompts are none of its concern."""
    adapters = Changing()
    tuned = request("prefill", 16, lora_request=SimpleNamespace(lora_name="tuned"))
    side = scheduler(tuned, request("prefill", 16, request_id="r2", transfer_id="b" * 32), adapters=adapters)

    adapters.changed = True
    step = side.take_step(step_output(new=[("r1", [5], 0, 16), ("r2", [6], 0, 16)]))

    assert [(each.transfer_id, each.reason) for each in step.abandoned] == [("a" * 32, ADAPTER_CHANGED)]
    assert [started.request_id for started in step.started] == ["r2"]
    assert [progress.request_id for progress in step.progress] == ["r2"]
    assert side.finish_request(tuned, aborted=False) is False
