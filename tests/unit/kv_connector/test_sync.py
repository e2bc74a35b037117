"""When a layer is handed to the sender, and what the sender has to wait for."""

import pytest

from kv_connector.errors import ConfigError
from kv_connector.metadata import Progress
from kv_connector.sync import Handover, LayerSync, make_layer_sync

PROMPTS = [Progress("r1", [1], 1)]


class Events:
    """Numbers the events that a policy records."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self) -> "Events":
        self.recorded += 1
        return self

    def synchronize(self) -> None:
        """Nothing runs here."""


def policy(name: str, layers: int = 3) -> tuple[LayerSync, list[Handover], Events]:
    """A policy, what it hands over, and the events that it records."""
    handed: list[Handover] = []
    events = Events()
    return make_layer_sync(name, layers, handed.append, events), handed, events


def run_step(sync: LayerSync, hooked: list[int]) -> None:
    """One forward pass in which these layers' hooks fire, in this order."""
    sync.begin_step(PROMPTS)
    for layer in hooked:
        sync.layer_written(layer)
    sync.end_step()


def test_event_hands_over_layer_by_layer() -> None:
    """Each layer with an event of its own, recorded behind it."""
    sync, handed, events = policy("event")

    run_step(sync, [0, 1, 2])

    assert [tuple(h.layers) for h in handed] == [(0,), (1,), (2,)]
    assert all(h.done is events for h in handed)
    assert events.recorded == 3


def test_a_layer_without_a_hook_is_handed_over_at_the_end_of_the_step() -> None:
    """Mamba layers and the like never fire a hook."""
    sync, handed, _ = policy("event")

    run_step(sync, [0, 2])

    assert [tuple(h.layers) for h in handed] == [(0,), (2,), (1,)]


def test_a_layer_that_is_hooked_twice_is_handed_over_once() -> None:
    """A second hook is that of a layer which only reads shared KV."""
    sync, handed, _ = policy("event")

    run_step(sync, [0, 1, 1, 2])

    assert [tuple(h.layers) for h in handed] == [(0,), (1,), (2,)]


def test_forward_hands_over_once_per_pass() -> None:
    """The whole-prompt baseline records one event."""
    sync, handed, events = policy("forward")

    run_step(sync, [0, 1, 2])

    assert [tuple(h.layers) for h in handed] == [(0, 1, 2)]
    assert events.recorded == 1


@pytest.mark.parametrize("name", ["event", "forward"])
def test_a_step_without_prompts_hands_over_nothing(name: str) -> None:
    """Decode steps and warm-up passes run the same hooks."""
    sync, handed, events = policy(name)
    run_step(sync, [0, 1, 2])
    handed.clear()
    recorded = events.recorded

    sync.begin_step([])
    sync.layer_written(0)
    sync.end_step()
    sync.end_step()

    assert handed == []
    assert events.recorded == recorded


def test_an_unknown_policy_is_named() -> None:
    """A bad value stops the process with a sentence."""
    with pytest.raises(ConfigError, match="layer_sync='soon'"):
        policy("soon")
