"""The two workers of a rank that sends and receives, as vLLM's hooks drive them; what is sent goes to its own other side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.kv_transfer import Grid
from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.handoff.metadata import DecodeStep, PrefillStep, StartedPrompt, Step
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.worker_side.sides import WorkerSides
from baton.kv_connector.worker_side.sync import HOST_STREAM, Handover, make_layer_sync
from tests.support.ranks import LAYERS, Ranks
from tests.support.schedulers import engine_config, scheduler_of
from tests.support.waiting import eventually

PROMPT = Prompt(40, 3, b"prompt a")


def run(sides: WorkerSides, prefill: PrefillStep) -> None:
    """One step of vLLM's V2 runner."""
    step = Step(prefill=prefill, decode=DecodeStep())
    sides.void(step)
    sides.begin_step(step)
    for layer in range(LAYERS):
        sides.attention_begins(f"layer.{layer}")
        sides.kv_issued(f"layer.{layer}")
    sides.finish_forward()
    sides.end_step()


def test_a_decode_node_pushes_after_the_pass_and_hands_nothing_over_without_prompts(tmp_path: Path) -> None:
    """A step that sends nothing records no event; of one that does, all layers go together, whether or not their hooks have run."""
    with Ranks(tmp_path) as ranks:
        sides = WorkerSides("decode", ranks.prefill, ranks.decode, pushes_layers=False)
        handed: list[Sequence[int]] = []

        def hand(handover: Handover) -> None:
            handed.append(handover.layers)
            ranks.prefill._sender.hand(handover)

        ranks.prefill._sync = make_layer_sync("forward", LAYERS, hand, HOST_STREAM)
        ranks.ask("a", 40, [7, 3, 4])
        run(sides, PrefillStep())
        before = list(handed)
        run(sides, PrefillStep([], [], [StartedPrompt("a", "p-a", PROMPT)], [Progress("p-a", [[1, 2, 5]], 3)]))
        run(sides, PrefillStep(holds=["p-a"]))
        sent: set[str] = set()
        received: set[str] = set()

        def have_ended() -> bool:
            results = sides.take_results()
            sent.update(results.finished_sending)
            received.update(results.finished_recving)
            return bool(sent and received | ranks.finished)

        ranks.wait_until(have_ended)

    assert before == []
    assert handed == [tuple(range(LAYERS))]
    assert (sent, received | ranks.finished) == ({"p-a"}, {"d-a"})


def test_what_has_been_received_is_told_to_vllm_and_to_the_scheduler(tmp_path: Path) -> None:
    """One hook returns what vLLM's scheduler waits for, the other what ours does."""
    received: set[str] = set()
    closed: list[str] = []
    with Ranks(tmp_path) as ranks:
        sides = WorkerSides("decode", ranks.prefill, ranks.decode, pushes_layers=False)
        ranks.hand_over()

        def is_told() -> bool:
            received.update(sides.take_results().finished_recving)
            closed.extend(report.closed if (report := sides.take_report()) else [])
            return bool(received and closed)

        eventually(is_told)

    assert (received, closed) == ({"d-a"}, ["d-a"])


def test_a_transfer_is_cancelled_on_the_side_that_has_it(tmp_path: Path) -> None:
    """The proxy does not say which; and both sides are shown, the node's own first."""
    with Ranks(tmp_path) as ranks:
        sides = WorkerSides("decode", ranks.prefill, ranks.decode, pushes_layers=False)
        ranks.watch("b")
        run(sides, PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT)], progress=[Progress("p-a", [[1, 2, 5]], 3)]))

        assert sides.cancel(["a"]) == 1
        assert sides.cancel(["b"]) == 1
        assert sides.cancel(["c"]) == 0
        snapshot = sides.snapshot()

    assert snapshot["control_address"] == ranks.prefill.address == sides.address
    assert "fences" in snapshot["totals"]
    assert snapshot["reverse"]["totals"]["cancelled"] == 1


@pytest.mark.parametrize(("role", "drops"), [("prefill", True), ("decode", False)])
def test_a_decode_nodes_preempted_streams_keep_their_tokens_in_flight(
    tmp_path: Path, role: str, *, drops: bool
) -> None:
    """It is a producer to vLLM, whose preempted requests are computed again; a node's own streams are not sent."""
    settings = {"role": role, "transfer": {"both_ways": True}}
    config = engine_config(tmp_path, "kv_both", settings)
    config.parallel_config.tensor_parallel_size, config.parallel_config.pipeline_parallel_size = 2, 3
    scheduler = scheduler_of(config, blocks=8)
    connector: Any = scheduler.connector

    assert connector._scheduler.prefill is not None
    assert connector._scheduler.prefill._answers == (config.model_config.get_vocab_size(), 512)  # it sends their KV
    assert connector._scheduler.decode is not None
    assert connector._scheduler.prefill._grid == connector._scheduler.decode._grid == Grid(tp=2, pp=3)
    assert scheduler.requires_kv_delivery is drops
    connector.shutdown()


@pytest.mark.parametrize(
    ("flags", "states", "words"),
    [
        ({}, True, r"recurrent layers \(Mamba, GDN\)"),
        ({"enable_prefix_caching": False}, False, "prefix cache, and it is off"),
    ],
)
def test_an_engine_that_cannot_send_answers_refuses_to_start(
    tmp_path: Path, flags: dict[str, Any], words: str, *, states: bool
) -> None:
    """Cached states too: what can be had of a stream is that of its last token."""
    config = engine_config(tmp_path, "kv_both", {"role": "prefill", "transfer": {"both_ways": True}}, **flags)

    with pytest.raises(ConnectorConfigError, match=rf"transfer\.both_ways .* {words}"):
        scheduler_of(config, blocks=8, states=states)
