"""The decode node's scheduler side: reservations, and who holds which block."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.contracts.kv_transfer import Grid, Grids
from baton.kv_connector.handoff.metadata import DecodeReport, Ending
from baton.kv_connector.scheduler_side import decode, prompt
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from baton.kv_connector.scheduler_side.prompt import ADAPTER_CHANGED
from baton.kv_connector.vllm_compat.lora import Adapters
from baton.kv_connector.vllm_compat.media import PRUNING, Media
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, PEER, SECRET, FakePool, config, request, step_output

ITEM = SimpleNamespace(identifier="i", mm_position=SimpleNamespace(offset=3, length=5))
POOL_BLOCKS = 33  # 32 and the null block


class Engine:
    """The part of vLLM's scheduler that these tests need."""

    def __init__(self, side: DecodeScheduler) -> None:
        self.side = side
        self.pool = FakePool(POOL_BLOCKS)
        side.bind_pool(self.pool)

    def asked(self, tokens: int = 40, **more: Any) -> Any:
        self.side.add_request(req := request("decode", tokens, **more))
        return req

    def admit(self, req: Any, local_tokens: int = 0) -> tuple[int | None, list[Any]]:
        """Match and allocate as vLLM does; returns the external tokens and the request's blocks."""
        tokens, _ = self.side.match(req, local_tokens)
        if tokens is None:
            return None, []
        blocks = self.pool.allocate(-(-req.num_prompt_tokens // BLOCK_TOKENS))
        self.side.allocated(req, [blocks], tokens)
        return tokens, blocks


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """A decode node's scheduler with 32 free blocks."""
    side = DecodeScheduler(config(tmp_path), SECRET, BLOCK_TOKENS)
    yield Engine(side)
    side.close()


def test_a_new_request_is_watched_at_its_prefill_node(engine: Engine) -> None:
    """P keeps a finished prompt only while a decode node says that it will want it."""
    engine.side.add_request(request("decode", 40))

    (watched,) = engine.side.take_step(step_output()).watched

    assert (watched.transfer_id, watched.request_id, watched.peers) == ("a" * 32, "r1", [PEER])


@pytest.mark.parametrize("grids", [Grids(decode=Grid(tp=2)), Grids(prefill=Grid(tp=2))])
def test_a_request_for_nodes_of_other_sizes_is_computed_here(engine: Engine, grids: Grids) -> None:
    """The proxy's knowledge is older than a node's process, or it names fewer addresses than the node has ranks."""
    req = engine.asked(grids=grids)

    assert engine.side.match(req, 0) == (0, False)
    assert engine.side.take_step(step_output()).watched == []


@pytest.mark.parametrize(("items", "watched"), [([], 1), ([ITEM], 0)], ids=["text", "with an image"])
def test_a_prompt_with_media_is_computed_here_where_they_are_not_handed_over(
    tmp_path: Path, items: list[Any], watched: int
) -> None:
    """Not so one of text."""
    side = DecodeScheduler(config(tmp_path), SECRET, BLOCK_TOKENS, media=Media(b"d", PRUNING))

    Engine(side).asked(mm_features=items)

    assert len(side.take_step(step_output()).watched) == watched
    assert [failure["reason"] for failure in side.snapshot()["failures"]] == [PRUNING] * (1 - watched)
    side.close()


def test_a_reservation_names_only_the_missing_blocks(engine: Engine) -> None:
    """The local prefix hit of one block is not asked for; the whole rest of the prompt is, its last token included."""
    req = engine.asked()

    tokens, blocks = engine.admit(req, local_tokens=16)

    (reserved,) = engine.side.take_step(step_output()).reserved
    assert tokens == 24
    assert (reserved.wish.tokens, reserved.wish.from_token) == (40, 16)
    assert reserved.wish.blocks == [[block.block_id for block in blocks[1:]]]


def test_what_goes_on_after_a_preemption_computes_no_less_than_nothing(engine: Engine) -> None:
    """The V2 runner has it among new requests, with more tokens cached than its prompt has."""
    engine.side.take_step(step_output(new=[("r1", [1, 2], 48, 1)]))

    assert engine.side.snapshot()["totals"]["prompt_tokens_computed"] == 0


def test_reserved_blocks_stay_out_of_the_pool_whatever_vllm_does(engine: Engine) -> None:
    """I3: vLLM frees an aborted request's blocks; the connector's own reference keeps them until the epoch is closed."""
    req = engine.asked()
    _, blocks = engine.admit(req)
    free = engine.pool.get_num_free_blocks()

    engine.side.finish_request(req)
    engine.pool.free_blocks(blocks)

    assert engine.pool.get_num_free_blocks() == free
    assert engine.side.take_step(step_output()).cancelled == ["r1"]
    engine.side.update(DecodeReport(closed=["r1"]), set())
    assert engine.pool.get_num_free_blocks() == POOL_BLOCKS - 1


def test_a_failed_receive_is_recomputed_once(engine: Engine) -> None:
    """After the failure the match hook answers (0, False), or the request would load for ever."""
    req = engine.asked()
    engine.admit(req)

    engine.side.update(DecodeReport(failed={"r1": "a push failed"}), {"r1"})

    assert engine.side.match(req, 0) == (0, False)
    assert engine.side.snapshot()["totals"]["recomputed"] == 1
    assert engine.side.has_open_reservations()


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_receive_starts_from_nothing_when_it_is_reported_finished(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """For a vLLM before 0.30, whose own word comes with that report: a step after the failure's, perhaps."""
    restarted: list[Any] = []
    monkeypatch.setattr(decode, "restart", restarted.append)
    req = engine.asked()
    engine.admit(req, local_tokens=16)

    engine.side.update(DecodeReport(failed={"r1": "a push failed"}), set() if late else {"r1"})
    assert restarted == ([] if late else [req])
    if late:
        engine.side.update(DecodeReport(), {"r1"})

    assert restarted == [req]


def test_a_preempted_request_does_not_load_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 9: it comes back to the match hook with the same parameters; the KV that arrived has been used."""
    monkeypatch.setattr(decode, "restart", lambda _: pytest.fail("it starts from nothing"))
    req = engine.asked()
    engine.admit(req)

    engine.side.update(DecodeReport(closed=["r1"]), {"r1"})

    assert engine.side.match(req, 0) == (0, False)
    assert engine.side.snapshot()["totals"]["loaded"] == 1


def test_a_prompt_that_is_all_here_needs_nothing(engine: Engine) -> None:
    """Only the last token is missing, which vLLM computes in any case: P is told to let go."""
    req = engine.asked(33)

    tokens, _ = engine.admit(req, local_tokens=32)

    step = engine.side.take_step(step_output())
    assert tokens == 0
    assert (step.reserved, step.cancelled) == ([], ["r1"])


def test_a_request_that_vllm_forces_to_compute_gives_up_its_transfer(engine: Engine) -> None:
    """Trap 9: vLLM may turn the match into 0 after the hook; only `allocated` tells."""
    req = engine.asked()
    assert engine.side.match(req, 0) == (40, True)

    engine.side.allocated(req, [[]], 0)

    assert engine.side.take_step(step_output()).cancelled == ["r1"]


def test_under_memory_pressure_only_a_started_prompt_may_reserve(engine: Engine) -> None:
    """E8: the last quarter of the pool is kept for prompts that their prefill node has started."""
    for index in range(4):
        req = engine.asked(96, request_id=f"full{index}", transfer_id=f"{index}" * 32)
        engine.admit(req)
    late = engine.asked(96, request_id="late", transfer_id="f" * 32)

    assert engine.side.match(late, 0) == (None, False)
    engine.side.update(DecodeReport(started={"f" * 32}), set())
    assert engine.side.match(late, 0) == (96, True)


def test_waiting_for_the_prompt_to_start_is_bounded(tmp_path: Path) -> None:
    """I5: a prompt that never starts is given up by the worker, and then computed here."""
    side = DecodeScheduler(config(tmp_path, early_reserve_share=1.0), SECRET, BLOCK_TOKENS)
    Engine(side)
    req = request("decode", 96)
    side.add_request(req)
    assert side.match(req, 0) == (None, False)

    side.update(DecodeReport(failed={"r1": "no commit within 120 s"}), set())

    assert side.match(req, 0) == (0, False)
    side.close()


def test_several_answers_to_one_prompt_need_one_transfer(engine: Engine) -> None:
    """With n > 1 the second engine request waits until the first one's prompt is cached, and then is an ordinary one."""
    first, second = engine.asked(), engine.asked(request_id="r2")
    assert engine.side.match(second, 0) == (None, False)
    engine.admit(first)
    engine.side.update(DecodeReport(), {"r1"})
    assert engine.side.match(second, 0) == (None, False)

    step = engine.side.take_step(step_output(new=[("r1", [1], 39, 1)]))

    assert engine.side.match(second, 32) == (0, False)
    assert [watched.request_id for watched in step.watched] == ["r1"]
    snapshot = engine.side.snapshot()
    assert (snapshot["totals"]["transfers"], snapshot["totals"]["shared"], snapshot["refused"]) == (1, 1, {})


def test_an_answer_with_a_first_token_of_its_own_receives_what_the_first_one_leaves(engine: Engine) -> None:
    """It waits like the others; then the prefix cache has the prompt, but for the last block."""
    first = engine.asked(choices=True, choice=0, first_token=True)
    second = engine.asked(choices=True, choice=1, first_token=True, request_id="r2")
    assert engine.side.match(second, 0) == (None, False)
    engine.admit(first)
    engine.side.update(DecodeReport(), {"r1"})
    assert engine.side.match(second, 0) == (None, False)

    step = engine.side.take_step(step_output(new=[("r1", [1], 39, 1)]))

    assert [watched.request_id for watched in step.watched] == ["r1", "r2"]
    assert step.watched[0].transfer_id == "a" * 32 != step.watched[1].transfer_id
    assert engine.side.match(second, 32) == (8, True)
    assert engine.side.snapshot()["totals"]["shared"] == 1


def test_the_second_answer_goes_on_alone_when_the_first_is_aborted(engine: Engine) -> None:
    """It must not wait for a transfer that no request receives."""
    first, second = engine.asked(), engine.asked(request_id="r2")
    engine.admit(first)

    engine.side.finish_request(first)

    assert engine.side.match(second, 0) == (0, False)


def test_each_prompt_of_a_batch_has_a_transfer_of_its_own(engine: Engine) -> None:
    """The parameters are the same for all; equal prompts share. An outcome is told under the name that the node knows."""
    batch = [engine.asked(tokens, request_id=name, several=True) for name, tokens in (("a", 40), ("b", 41), ("c", 40))]

    watched = engine.side.take_step(step_output()).watched

    assert [one.request_id for one in watched] == ["a", "b"]
    assert len({one.transfer_id for one in watched} | {"a" * 32}) == 3
    assert engine.side.match(batch[2], 0) == (None, False)
    assert engine.side.match(batch[1], 0) == (41, True)


def test_a_transfer_id_serves_one_prompt_only(engine: Engine) -> None:
    """Another prompt under the same id is an ordinary request."""
    engine.asked()
    other = engine.asked(41, request_id="r2")

    assert engine.side.match(other, 0) == (0, False)
    assert len(engine.side.take_step(step_output()).watched) == 1
    assert engine.side.snapshot()["refused"] == {"reused_id": 1}


def test_a_request_that_must_not_read_the_prefix_cache_is_left_alone(engine: Engine) -> None:
    """`prompt_logprobs` need every prompt token computed here."""
    req = engine.asked(skip_reading_prefix_cache=True)

    assert engine.side.match(req, 0) == (0, False)
    assert engine.side.take_step(step_output()).watched == []


def test_every_transfer_ends_in_exactly_one_way(engine: Engine) -> None:
    """Loaded, recomputed, cancelled or not needed: the counts add up, and reasons are counted by class."""
    requests = {name: engine.asked(request_id=name, transfer_id=name * 32) for name in "abcd"}
    for name in "abc":
        engine.admit(requests[name])
    engine.side.allocated(requests["d"], [[]], 0)

    engine.side.update(DecodeReport(failed={"b": "no commit within 120 s"}), {"a", "b"})
    for req in requests.values():
        engine.side.finish_request(req)

    snapshot = engine.side.snapshot()
    expected = {"transfers": 4, "loaded": 1, "recomputed": 1, "cancelled": 1, "cached": 1, "tokens_received": 40}
    assert {name: count for name, count in snapshot["totals"].items() if count} == expected
    assert {name: count for name, count in snapshot["recomputed_by_reason"].items() if count} == {"timeout": 1}
    told = {record["request_id"]: record["state"] for record in snapshot["recent"]}
    assert told == {"a": "loaded", "b": "recomputed", "c": "cancelled"}  # d had no transfer to tell of


def test_a_loaded_request_is_timed_until_the_step_that_first_schedules_it(engine: Engine) -> None:
    """Later steps change nothing; a step before the KV came would not have counted."""
    req = engine.asked()
    engine.admit(req)
    engine.side.take_step(step_output(new=[("another", [9], 0, 1)]))
    ending = Ending(at_s=1.0, reserve_sent_s=0.5, committed=True, timings_s={"commit": 0.25}, pushing_s=0.125)
    engine.side.update(DecodeReport(endings={"r1": ending}), {"r1"})
    assert engine.side.snapshot()["recent"] == []

    engine.side.take_step(step_output(new=[("r1", [1], 39, 1)]))
    engine.side.take_step(step_output(new=[("r1", [1], 39, 1)]))
    engine.side.finish_request(req)

    (record,) = engine.side.snapshot()["recent"]
    assert (record["transfer_id"], record["state"], record["peer"]) == ("a" * 32, "loaded", PEER)
    assert set(record["timings_s"]) == {"arrived", "reserved", "reserve_sent", "commit_received", "first_step"}
    assert record["prefill"] == {"timings_s": {"commit": 0.25}, "pushing_s": 0.125}


@pytest.mark.parametrize(
    ("local", "remote", "billed"), [(0, 0, 0), (16, 0, 16), (16, 32, 32), (32, 16, 32), (0, 99, 40)]
)
def test_received_tokens_are_not_billed_as_cached(engine: Engine, local: int, remote: int, billed: int) -> None:
    """Cached is what D or P had in a prefix cache, however much KV came; a peer's number is never believed beyond the prompt."""
    req = engine.asked()
    engine.admit(req, local_tokens=local)
    req.prefill_stats = stats = SimpleNamespace(num_local_cached_tokens=local, num_cached_tokens=40)
    ending = Ending(at_s=1.0, reserve_sent_s=0.5, committed=True, timings_s={}, pushing_s=0.1, cached_tokens=remote)

    engine.side.update(DecodeReport(endings={"r1": ending}), {"r1"})

    assert stats.num_cached_tokens == billed


def test_a_failed_receive_leaves_vllms_own_count(engine: Engine) -> None:
    """The prompt is scheduled again, and vLLM counts from the start; nothing that P said counts."""
    req = engine.asked()
    engine.admit(req)
    req.prefill_stats = stats = SimpleNamespace(num_local_cached_tokens=0, num_cached_tokens=7)

    engine.side.update(DecodeReport(failed={"r1": "the prefill node does not answer"}), {"r1"})

    assert stats.num_cached_tokens == 7


def test_an_adapter_that_changed_while_its_prompt_waited_is_computed_here(tmp_path: Path) -> None:
    """I7: what P has computed may be another adapter's KV. Nothing is reserved, and the reason is told."""
    name = "as it was"
    adapters = Adapters()
    adapters.name_of = lambda adapter: name  # type: ignore[method-assign]
    side = DecodeScheduler(config(tmp_path), SECRET, BLOCK_TOKENS, adapters=adapters)
    engine = Engine(side)
    tuned = request("decode", 40, lora_request=SimpleNamespace(lora_name="tuned"))
    side.add_request(tuned)
    name = "otherwise"

    assert engine.admit(tuned)[0] == 0
    assert side.match(tuned, 0) == (0, False)

    assert side.take_step(step_output()).reserved == []
    assert [failure["reason"] for failure in side.snapshot()["failures"]] == [ADAPTER_CHANGED]
    assert side.snapshot()["recomputed_by_reason"]["mismatch"] == 1
    side.close()


def test_a_waiting_prompt_with_an_adapter_costs_nothing_in_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each waiting prompt was hashed again in every step, and its adapter's files looked at."""
    looks: list[str] = []

    def name_of(_: object) -> str:
        looks.append("files")
        return "tuned"

    def blake2b(*args: Any, **more: Any) -> Any:
        looks.append("tokens")
        return hashlib.blake2b(*args, **more)

    adapters = Adapters()
    monkeypatch.setattr(adapters, "name_of", name_of)
    monkeypatch.setattr(prompt, "blake2b", blake2b)
    side = DecodeScheduler(config(tmp_path), SECRET, BLOCK_TOKENS, adapters=adapters)
    engine = Engine(side)
    engine.pool.allocate(28)  # too few are left for a prompt that has not started
    tuned = request("decode", 40, lora_request=SimpleNamespace(lora_name="tuned"))
    side.add_request(tuned)
    looks.clear()

    assert [engine.admit(tuned)[0] for _ in range(100)] == 100 * [None]
    assert looks == []

    side.update(DecodeReport(started={"a" * 32}), set())
    assert engine.admit(tuned)[0] == 40
    assert looks == ["files"]
    side.close()
