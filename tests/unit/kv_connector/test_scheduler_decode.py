"""The decode node's scheduler side: reservations, and who holds which block."""

import hashlib
import time
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
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, PEER, MakeDecode, request, step_output

ITEM = SimpleNamespace(identifier="i", mm_position=SimpleNamespace(offset=3, length=5))


class Engine:
    """The part of vLLM's scheduler that these tests need."""

    def __init__(self, side: DecodeScheduler) -> None:
        self.side = side
        self.pool: Any = side._ledger.pool

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
def engine(make_decode: MakeDecode) -> Engine:
    """A decode node's scheduler with 32 free blocks."""
    return Engine(make_decode())


def test_a_new_request_is_watched_at_its_prefill_node(engine: Engine) -> None:
    """P keeps a finished prompt only while a decode node says that it will want it."""
    engine.side.add_request(request("decode", 40))

    (watched,) = engine.side.take_step(step_output()).watched

    assert (watched.transfer_id, watched.request_id, watched.peers) == ("a" * 32, "r1", [PEER])


@pytest.mark.parametrize(
    "said",
    [
        {"grids": Grids(decode=Grid(tp=2))},  # the proxy's knowledge is older than a node's process
        {"grids": Grids(prefill=Grid(tp=2))},  # it names fewer addresses than the node has ranks
        {"skip_reading_prefix_cache": True},  # `prompt_logprobs` need every prompt token computed here
    ],
    ids=str,
)
def test_a_request_that_cannot_be_received_is_computed_here(engine: Engine, said: dict[str, Any]) -> None:
    req = engine.asked(**said)

    assert engine.side.match(req, 0) == (0, False)
    assert engine.side.take_step(step_output()).watched == []


@pytest.mark.parametrize(("items", "watched"), [([], 1), ([ITEM], 0)], ids=["text", "with an image"])
def test_a_prompt_with_media_is_computed_here_where_they_are_not_handed_over(
    make_decode: MakeDecode, items: list[Any], watched: int
) -> None:
    """Not so one of text."""
    side = make_decode(media=Media(b"d", PRUNING))

    side.add_request(request("decode", 40, mm_features=items))

    assert len(side.take_step(step_output()).watched) == watched
    assert [failure["reason"] for failure in side.snapshot()["failures"]] == [PRUNING] * (1 - watched)


def test_a_reservation_names_only_the_missing_blocks(engine: Engine) -> None:
    """The local prefix hit of one block is not asked for; the whole rest of the prompt is, its last token included."""
    req = engine.asked()

    tokens, blocks = engine.admit(req, local_tokens=16)

    step = step_output(new=[("r2", [9], 16, 24), ("r3", [8], 0, 40)])
    step.scheduled_new_reqs[0].prompt_token_ids = [0] * 40
    step.scheduled_new_reqs[1].prompt_token_ids = None  # of embeddings
    (reserved,) = engine.side.take_step(step).reserved
    assert engine.side.snapshot()["totals"]["prompt_tokens_computed"] == 24  # of another prompt
    assert tokens == 24
    assert (reserved.wish.tokens, reserved.wish.from_token) == (40, 16)
    assert reserved.wish.blocks == [[block.block_id for block in blocks[1:]]]


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
    assert engine.pool.get_num_free_blocks() == 32
    told = engine.side.history.of(blocks[0].block_id, time.monotonic())
    assert [line.partition(" ago ")[2] for line in told] == ["reserved for the peer of r1", "let go by the peers of r1"]


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_receive_is_recomputed_once_from_nothing_when_it_is_reported_finished(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Else the request would load for ever, and be billed as P said. A vLLM before 0.30 says so itself with that report, perhaps a step later."""
    restarted: list[Any] = []
    monkeypatch.setattr(decode, "restart", restarted.append)
    req = engine.asked()
    req.prefill_stats = stats = SimpleNamespace(num_local_cached_tokens=0, num_cached_tokens=7)
    engine.admit(req, local_tokens=16)

    engine.side.update(DecodeReport(failed={"r1": "a push failed"}), set() if late else {"r1"})
    assert restarted == ([] if late else [req])
    if late:
        engine.side.update(DecodeReport(), {"r1"})

    assert restarted == [req]
    assert stats.num_cached_tokens == 7
    assert engine.side.match(req, 0) == (0, False)
    assert engine.side.snapshot()["totals"]["recomputed"] == 1
    assert engine.side.has_open_reservations()


def test_a_preempted_request_does_not_load_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 9: it comes back to the match hook with the same parameters; the KV that arrived has been used."""
    monkeypatch.setattr(decode, "restart", lambda _: pytest.fail("it starts from nothing"))
    req = engine.asked()
    engine.admit(req)
    req.prefill_stats = stats = SimpleNamespace(num_local_cached_tokens=0, num_cached_tokens=40)

    engine.side.update(DecodeReport(closed=["r1"]), {"r1"})

    assert stats.num_cached_tokens == 0  # no rank has said that P had any of it cached
    assert engine.side.match(req, 0) == (0, False)
    assert engine.side.snapshot()["totals"]["loaded"] == 1


@pytest.mark.parametrize(("local_tokens", "matched"), [(32, (0, False)), (0, (33, True))])
def test_a_request_that_vllm_computes_gives_up_its_transfer(
    engine: Engine, local_tokens: int, matched: tuple[int, bool]
) -> None:
    """The last token is computed in any case; trap 9: vLLM may also turn a match into 0 after the hook. Only `allocated` tells."""
    req = engine.asked(33)
    assert engine.side.match(req, local_tokens) == matched

    engine.side.allocated(req, [[]], 0)

    step = engine.side.take_step(step_output())
    assert (step.reserved, step.cancelled) == ([], ["r1"])


def test_under_memory_pressure_only_a_started_prompt_may_reserve(engine: Engine) -> None:
    """E8: the last quarter of the pool is kept for prompts that their prefill node has started. One that never starts fails (I5)."""
    for index in range(4):
        req = engine.asked(96, request_id=f"full{index}", transfer_id=f"{index}" * 32)
        engine.admit(req)
    late, never = (engine.asked(96, request_id=name, transfer_id=name * 32) for name in "ef")

    assert engine.side.match(late, 0) == engine.side.match(never, 0) == (None, False)
    engine.side.update(DecodeReport(started={"e" * 32}, failed={"f": "no commit within 120 s"}), set())
    assert engine.side.match(late, 0) == (96, True)
    assert engine.side.match(never, 0) == (0, False)


def test_the_last_free_blocks_may_be_reserved_where_none_are_kept(make_decode: MakeDecode) -> None:
    """By a share of 0."""
    side = make_decode(transfer={"early_reserve_share": 0.0})
    side.add_request(req := request("decode", 32 * BLOCK_TOKENS))

    assert side.match(req, 0) == (32 * BLOCK_TOKENS, True)


@pytest.mark.parametrize(
    ("said", "transfers", "matched"), [({}, 1, (0, False)), ({"choices": True, "first_token": True}, 2, (8, True))]
)
def test_several_answers_to_one_prompt_need_one_transfer(
    engine: Engine, said: dict[str, Any], transfers: int, matched: tuple[int, bool]
) -> None:
    """With n > 1 the second engine request waits until the first one's prompt is cached, and then is an ordinary one.

    One with a first token of its own waits likewise: then it receives what the prefix cache does not have, the last block.
    """
    first, second = (engine.asked(request_id=name, choice=choice, **said) for choice, name in enumerate(("r1", "r2")))
    assert engine.side.match(second, 0) == (None, False)
    engine.admit(first)
    engine.side.update(DecodeReport(), {"r1"})
    assert engine.side.match(second, 0) == (None, False)

    step = engine.side.take_step(step_output(new=[("r1", [1], 39, 1)]))

    assert engine.side.match(second, 32) == matched
    assert [watched.request_id for watched in step.watched] == ["r1", "r2"][:transfers]
    assert step.watched[0].transfer_id == "a" * 32
    assert len({watched.transfer_id for watched in step.watched}) == transfers
    snapshot = engine.side.snapshot()
    assert (snapshot["totals"]["transfers"], snapshot["totals"]["shared"], snapshot["refused"]) == (transfers, 1, {})
    # more is cached than a prompt has, as with what goes on after a preemption in the V2 runner: not less than nothing
    assert snapshot["totals"]["prompt_tokens_computed"] == 0


def test_each_prompt_of_a_batch_has_a_transfer_of_its_own(engine: Engine) -> None:
    """The parameters are the same for all; equal prompts share. An outcome is told under the name that the node knows."""
    batch = [engine.asked(tokens, request_id=name, several=True) for name, tokens in (("a", 40), ("b", 41), ("c", 40))]

    watched = engine.side.take_step(step_output()).watched

    assert [one.request_id for one in watched] == ["a", "b"]
    assert len({one.transfer_id for one in watched} | {"a" * 32}) == 3
    assert engine.side.match(batch[2], 0) == (None, False)
    assert engine.side.match(batch[1], 0) == (41, True)
    engine.side.finish_request(batch[0])  # aborted: the one that waits for it goes on alone
    assert engine.side.match(batch[2], 0) == (0, False)


def test_a_transfer_id_serves_one_prompt_only(engine: Engine) -> None:
    """Another prompt under the same id is an ordinary request, unless the first one has gone."""
    first = engine.asked()
    other = engine.asked(41, request_id="r2")

    assert engine.side.match(other, 0) == (0, False)
    assert len(engine.side.take_step(step_output()).watched) == 1
    assert engine.side.snapshot()["refused"] == {"reused_id": 1}
    engine.side.finish_request(first)
    engine.side.add_request(other)
    assert len(engine.side.take_step(step_output()).watched) == 1


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
    engine.side.take_step(step_output(new=[("r1", [1], 0, 1)]))
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


def test_an_adapter_that_changed_while_its_prompt_waited_is_computed_here(make_decode: MakeDecode) -> None:
    """I7: what P has computed may be another adapter's KV. Nothing is reserved, and the reason is told."""
    name = "as it was"
    adapters = Adapters()
    adapters.name_of = lambda adapter: name  # type: ignore[method-assign]
    engine = Engine(make_decode(adapters=adapters))
    tuned = engine.asked(lora_request=SimpleNamespace(lora_name="tuned"))
    name = "otherwise"

    assert engine.admit(tuned)[0] == 0
    assert engine.side.match(tuned, 0) == (0, False)

    assert engine.side.take_step(step_output()).reserved == []
    snapshot = engine.side.snapshot()
    assert [failure["reason"] for failure in snapshot["failures"]] == [ADAPTER_CHANGED]
    assert snapshot["recomputed_by_reason"]["mismatch"] == 1


def test_a_waiting_prompt_with_an_adapter_costs_nothing_in_a_step(
    make_decode: MakeDecode, monkeypatch: pytest.MonkeyPatch
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
    engine = Engine(make_decode(adapters=adapters))
    engine.pool.allocate(28)  # too few are left for a prompt that has not started
    tuned = engine.asked(lora_request=SimpleNamespace(lora_name="tuned"))
    looks.clear()

    assert [engine.admit(tuned)[0] for _ in range(100)] == 100 * [None]
    assert looks == []

    engine.side.update(DecodeReport(started={"a" * 32}), set())
    assert engine.admit(tuned)[0] == 40
    assert looks == ["files"]
