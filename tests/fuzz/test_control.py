"""A short run of what `python -m tests.fuzz.control` does at length, with bounds so low that it reaches them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.kv_connector.handoff import peer_quotas
from tests.fuzz.control import Outcome, run
from tests.fuzz.world import World

FRAMES = 20_000
GROWTH_BYTES = 64 * 1024 * 1024  # this process has much else in it; the long run is stricter


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Honest and hostile ranks, with little room."""
    monkeypatch.setattr(peer_quotas, "MAX_TRANSFERS_EACH", 64)
    monkeypatch.setattr(peer_quotas, "MAX_UNSTARTED", 128)
    monkeypatch.setattr(peer_quotas, "MAX_PEERS", 64)
    monkeypatch.setattr(peer_quotas, "BEAT_BUDGET", 32)
    world = World(tmp_path, seed=4, tombstones=512, connections=32)
    yield world
    world.stop()


def test_hostile_frames_harm_no_honest_rank(world: World) -> None:
    """No crash, no growth, no byte where none may be, and every honest transfer arrives with the right bytes."""
    outcome = run(world, FRAMES)

    assert outcome.problems == []
    assert outcome.mutated >= FRAMES
    assert world.healthy.arrived > 20
    assert outcome.growth_bytes < GROWTH_BYTES
    reached(world, outcome)


def reached(world: World, outcome: Outcome) -> None:
    """A run in which nothing of note happens would prove nothing."""
    for name in ("P tombstones", "P connections"):
        assert outcome.most[name] == outcome.bounds[name], name
    refused = world.ranks.prefill.snapshot()["refused"], world.ranks.decode.snapshot()["refused"]
    p = {"malformed", "version", "second_sender", "foreign_receiver", "overtaken", "unexpected", "engine"}
    assert p | {"not_theirs"} <= set(refused[0])
    assert {"malformed", "version", "stranger", "foreign_receiver", "overtaken", "unexpected"} <= set(refused[1])
    honest = world.healthy.arrived + world.healthy.cancelled
    assert world.ranks.prefill.snapshot()["totals"]["committed"] > honest, "hostile prompts are pushed too"
    assert world.ranks.decode.snapshot()["totals"]["fences"] > 0
    assert outcome.complaints > 0, "some hostile KV was compared and found wrong"
