"""A short run of the suite on every change: some clients that leave, a few kills.

`make chaos` runs it for as long as one likes, with processes stopped and links cut as well.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from baton.contracts.configuration.schema import TransferConfig
from baton.deploy.forkserver import ForkServer
from tests.chaos.cluster import BOTH_WAYS, Cluster, Shape
from tests.chaos.conftest import SEED
from tests.chaos.matrix import fault_table, storm_table
from tests.chaos.parts import AT_ONCE_AMID_ORDERS
from tests.chaos.phases import Phase
from tests.chaos.runs import StormSize, plain_server, references_from, run_faults, run_storm
from tests.chaos.schedule import Kill, Victim, kills
from tests.chaos.workload import MEDIA_MODEL, Reference, ask_reference, draw_images
from tests.e2e.stack import stack_on
from tests.matrix.media_models import ensure
from tests.matrix.models import MODELS
from tests.matrix.models import ensure as ensure_model

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1200)]

ABORTS = 100
STORM_SECONDS = 30.0  # unless some phase had too few
FEW = 3  # clients that leave in each phase, on a machine however slow
PEER_TIMEOUT_S = 2.0
PATIENCE = 8.0
MEDIA_KILLS = 10
BOTH_WAYS_KILLS = 6
REQUEST_TIMEOUT_S = 120.0
HYBRID = "falcon-h1"
# A block is longer than most prompts, and a state leaves with the last chunk: little is seen between chunks or layers.
HYBRID_KILLS: list[tuple[Victim, Phase]] = [
    ("prefill", Phase.FINISHED),
    ("decode", Phase.DECODING),
    ("proxy", Phase.WAITING),
    ("prefill", Phase.WAITING),
    ("decode", Phase.FINISHED),
]
# Two decode nodes share two cores with six processes of the prefill nodes, of which two wait for each other several times a layer.
HYBRID_AT_ONCE, HYBRID_TIMEOUT_S, HYBRID_PATIENCE = 20, 300.0, 24.0
HYBRID_BLOCK = 4  # times as large as the embedded model's, of 256 tokens; a request has up to three


# Twice as many processes share the cores: prompts would be preempted, or computed between two looks at the nodes.
BUSY: dict[str, Any] = {"prefill_blocks": 64, "layer_s": 0.01}
SHAPES: dict[str, dict[str, Any]] = {
    "1 to 1": {},
    "tp2 to 1": {"prefill_ranks": "-tp 2", **BUSY},
    "1 to tp2": {"decode_ranks": "-tp 2"},
    "pp2 to 1": {"prefill_ranks": "-pp 2", **BUSY, "layer_s": 0.03},  # stages work at the same time
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(shape, id=name, marks=[pytest.mark.matrix] if shape else []) for name, shape in SHAPES.items()
    ],
)
def chaos(
    request: pytest.FixtureRequest,
    forkserver: ForkServer,
    references: list[Reference],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cluster, list[Reference]]]:
    """Two prefill nodes, two decode nodes, a proxy, and the right answers."""
    with stack_on(forkserver, tmp_path_factory.mktemp("chaos")) as stack:
        shape = Shape(
            transfer=replace(TransferConfig(), peer_timeout_s=PEER_TIMEOUT_S),
            request_timeout_s=REQUEST_TIMEOUT_S,
            patience=PATIENCE,
            **request.param,
        )
        yield Cluster(stack, shape), references


def test_clients_that_leave_in_every_phase_cost_nothing(chaos: tuple[Cluster, list[Reference]]) -> None:
    """Every block is free again, every transfer closed in time, and every client that stayed has the exact answer."""
    cluster, references = chaos

    tally = run_storm(cluster, references, StormSize(SEED, ABORTS // 2, STORM_SECONDS, at_once=40), at_least=FEW)

    print(storm_table(tally), tally.results, tally.paths)
    assert tally.problems == []
    assert tally.paths["disaggregated"] > 0


def test_killed_processes_cost_no_answer(chaos: tuple[Cluster, list[Reference]]) -> None:
    """Exact or a typed error within the bound; everything given back; hand-over works again with nothing else touched."""
    moments: list[tuple[Victim, Phase]] = [
        ("prefill", Phase.BETWEEN_LAYERS),
        ("decode", Phase.DECODING),
        ("proxy", Phase.WAITING),
    ]
    more: dict[str, Any] = {"engine_only": False, "other_port": True, "lasts_s": 1.0}
    drawn = [Kill(number=number, victim=who, phase=when, **more) for number, (who, when) in enumerate(moments)]
    check(chaos, drawn)


@pytest.mark.exhaustive
def test_prompts_with_images_survive_clients_that_leave_and_kills(
    forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One and several images, images that both nodes have cached: what holds for text holds for them."""
    with stack_on(forkserver, tmp_path_factory.mktemp("media"), ensure(MEDIA_MODEL)) as stack:
        plain = plain_server(stack, has_media=True)
        references = asyncio.run(ask_reference(plain.url, stack.model, draw_images()))
        stack.stop(plain)
        shape = Shape(
            transfer=replace(TransferConfig(), peer_timeout_s=PEER_TIMEOUT_S, kv_verify="full"),
            request_timeout_s=REQUEST_TIMEOUT_S,
            patience=PATIENCE,
            has_media=True,
            layer_s=0.01,
            prefill_blocks=12,  # a block has half the bytes: 24
            decode_blocks=20,
        )
        check((Cluster(stack, shape), references), kills(SEED, MEDIA_KILLS, PEER_TIMEOUT_S), all_reached=False)


@pytest.mark.exhaustive
def test_states_of_several_ranks_survive_clients_that_leave_and_kills(
    forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A model with recurrent layers, of whose states each of P's two ranks has a half: what holds for KV holds for them."""
    recipe = MODELS[HYBRID]
    with stack_on(forkserver, tmp_path_factory.mktemp("states"), ensure_model(HYBRID, recipe)) as stack:
        plain = plain_server(stack, *recipe.flags)
        references = references_from(plain, stack.model, SEED, families=6, members=8)
        stack.stop(plain)
        shape = Shape(
            transfer=replace(TransferConfig(), peer_timeout_s=PEER_TIMEOUT_S),
            request_timeout_s=HYBRID_TIMEOUT_S,
            patience=HYBRID_PATIENCE,
            step_tokens=256,
            chunk_tokens=64,
            prefill_ranks="-tp 2",
            of_model=tuple(recipe.flags),
            layer_s=0.01,
            prefill_blocks=24 * HYBRID_BLOCK,
            decode_blocks=36 * HYBRID_BLOCK,
        )
        chaos = Cluster(stack, shape), references

        tally = run_storm(*chaos, StormSize(SEED, ABORTS, STORM_SECONDS, at_once=HYBRID_AT_ONCE))

        print(storm_table(tally), tally.results, tally.paths)
        assert tally.problems == []
        assert tally.paths["disaggregated"] > 0
        more: dict[str, Any] = {"engine_only": False, "other_port": True, "lasts_s": 1.0}
        check(
            chaos,
            [Kill(number=number, victim=who, phase=when, **more) for number, (who, when) in enumerate(HYBRID_KILLS)],
        )


@pytest.mark.exhaustive
def test_streams_answers_and_roles_move_amid_clients_that_leave_and_kills(
    forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nodes that send and receive, of conversations whose answers return, while streams are moved and roles changed at random."""
    with stack_on(forkserver, tmp_path_factory.mktemp("both-ways")) as stack:
        plain = plain_server(stack)
        references = references_from(plain, stack.model, SEED, families=6, members=8, has_turns=True)
        stack.stop(plain)
        shape = Shape(
            transfer=replace(TransferConfig(), peer_timeout_s=PEER_TIMEOUT_S, both_ways=True),
            request_timeout_s=REQUEST_TIMEOUT_S,
            patience=PATIENCE,
            **BOTH_WAYS,
        )
        chaos = Cluster(stack, shape), references

        tally = run_storm(*chaos, StormSize(SEED, 3 * ABORTS, STORM_SECONDS, at_once=AT_ONCE_AMID_ORDERS))

        print(storm_table(tally), tally.results, tally.paths, tally.orders)
        assert tally.problems == []
        assert min(tally.orders[what] for what in ("role ordered", "streams moved", "answers returned")) > 0
        check(chaos, kills(SEED, BOTH_WAYS_KILLS, PEER_TIMEOUT_S), all_reached=False)


def check(chaos: tuple[Cluster, list[Reference]], faults: Sequence[Kill], *, all_reached: bool = True) -> None:
    """Bring the faults about and look at what they did."""
    outcomes = run_faults(*chaos, faults, seed=SEED, seconds=600.0)

    print(fault_table(outcomes))
    assert [problem for outcome in outcomes for problem in outcome.problems] == []
    assert all(outcome.reached for outcome in outcomes) or not all_reached
    assert any(outcome.reached for outcome in outcomes)
