"""When a layer is handed to the sender, and what anybody has to wait for."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.worker_side.sync import (
    EventSync,
    Handover,
    LayerSync,
    ModelStream,
    StreamSync,
    attention_writes_kv,
    make_layer_sync,
    recorder,
)

PROMPTS = [Progress("r1", [[1]], 1)]


class Device:
    """Notes what is asked of the model stream, and what is handed over between."""

    def __init__(self, name: str, *, by_attention: bool = True, device_type: str = "cuda", layers: int = 3) -> None:
        self.log: list[str | tuple[int, ...]] = []
        self.handed: list[Handover] = []
        stream = ModelStream(
            device_type=device_type,
            record=self._record,
            synchronize=lambda: self.log.append("synchronised"),
            attention_writes_kv=by_attention,
        )
        self.sync: LayerSync = make_layer_sync(name, layers, self._hand, stream)

    def run_step(self, hooked: list[int], at_once: int = 1) -> None:
        """One forward pass in which these layers' hooks fire, in this order."""
        self.sync.begin_step(PROMPTS, at_once)
        for layer in hooked:
            self.sync.attention_begins(layer)
            self.sync.kv_issued(layer)
        self.sync.end_step()

    def synchronize(self) -> None:
        """As an event: nothing runs here."""

    def _record(self) -> "Device":
        self.log.append("recorded")
        return self

    def _hand(self, handover: Handover) -> None:
        self.handed.append(handover)
        self.log.append(tuple(handover.layers))


@pytest.mark.parametrize(
    ("name", "by_attention", "hooked", "at_once", "handed"),
    [
        ("forward", True, [0, 1, 2, 3], 1, [(0, 1, 2, 3)]),
        # small layers go together, and what is left over goes at the end of the step
        ("event", True, [0, 1, 2, 3], 3, [(0, 1, 2), (3,)]),
        ("event", False, [0, 1, 2, 3], 3, [(0, 1, 2), (3,)]),
        ("stream", True, [0, 1, 2, 3], 3, [(0, 1, 2), (3,)]),
        ("stream", False, [0, 1, 2, 3], 3, [(0, 1, 2), (3,)]),
        # layers without a hook, such as Mamba's, go at the end of the step
        ("event", True, [0, 2], 1, [(0,), (2,), (1, 3)]),
        ("stream", True, [0, 2], 1, [(0,), (2, 1, 3)]),
        ("stream", False, [0, 2], 1, [(0,), (2,), (1, 3)]),
        # one by one; a second hook is that of a layer which only reads shared KV
        ("event", True, [0, 1, 1, 2, 3], 1, [(0,), (1,), (2,), (3,)]),
        ("event", False, [0, 1, 1, 2, 3], 1, [(0,), (1,), (2,), (3,)]),
        ("stream", True, [0, 1, 1, 2, 3], 1, [(0,), (1,), (2,), (3,)]),
        ("stream", False, [0, 1, 1, 2, 3], 1, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_each_layer_is_handed_over_once_with_what_to_wait_for(
    name: str, by_attention: bool, hooked: list[int], at_once: int, handed: list[tuple[int, ...]]
) -> None:
    """One event or one wait before each hand-over, and no other; the model thread waits under `stream` alone."""
    device = Device(name, by_attention=by_attention, layers=4)

    device.run_step(hooked, at_once)

    before = "synchronised" if name == "stream" else "recorded"
    assert device.log == [entry for layers in handed for entry in (before, layers)]
    assert {handover.done for handover in device.handed} == ({None} if name == "stream" else {device})


@pytest.mark.parametrize(("name", "first"), [("event", "recorded"), ("stream", "synchronised")])
def test_a_layer_leaves_before_its_attention_if_its_kv_is_written_before_it(name: str, first: str) -> None:
    """Trap 19: one hook earlier, so that its attention is already overlapped."""
    device = Device(name, by_attention=False)
    device.sync.begin_step(PROMPTS)

    device.sync.attention_begins(0)

    assert device.log == [first, (0,)]


def test_a_step_forgets_what_the_last_one_did_not_hand_over() -> None:
    """A pass that failed has written nothing that may be pushed."""
    device = Device("event")
    device.sync.begin_step(PROMPTS, 3)
    device.sync.kv_issued(0)

    device.sync.begin_step([])
    device.sync.end_step()

    assert device.handed == []


@pytest.mark.parametrize("name", ["event", "stream", "forward"])
def test_hooks_before_the_first_step_say_nothing(name: str) -> None:
    """An engine warms up before it has anything to push."""
    device = Device(name)

    device.sync.attention_begins(0)
    device.sync.kv_issued(0)
    device.sync.end_step()

    assert device.log == []


def test_stream_waits_at_the_hook_of_the_next_layer() -> None:
    """The attention writes the KV: a layer is complete once the next one's hook has waited, the last at the end."""
    device = Device("stream", by_attention=True)
    device.sync.begin_step(PROMPTS)

    device.sync.attention_begins(0)
    device.sync.kv_issued(0)
    assert device.log == []
    device.sync.attention_begins(1)
    assert device.log == ["synchronised", (0,)]


@pytest.mark.parametrize("name", ["event", "stream", "forward"])
def test_a_step_without_prompts_costs_nothing(name: str) -> None:
    """Decode steps and warm-up passes run the same hooks: no event, no wait, nothing handed over."""
    device = Device(name)
    device.run_step([0, 1, 2])
    device.log.clear()

    device.sync.begin_step([])
    device.sync.attention_begins(0)
    device.sync.kv_issued(0)
    device.sync.attention_begins(1)
    device.sync.end_step()
    device.sync.end_step()

    assert device.log == []


@pytest.mark.parametrize(
    ("name", "device_type", "policy"),
    [
        ("auto", "cuda", EventSync),
        ("auto", "cpu", EventSync),
        ("auto", "npu", StreamSync),
        ("event", "npu", EventSync),
        ("stream", "cuda", StreamSync),
        ("forward", "npu", LayerSync),
    ],
)
def test_auto_is_stream_on_an_npu_and_event_elsewhere(name: str, device_type: str, policy: type) -> None:
    """What the configuration names is taken at its word."""
    assert type(Device(name, device_type=device_type).sync) is policy


def test_an_unknown_policy_is_named() -> None:
    """A bad value stops the process with a sentence."""
    with pytest.raises(ConnectorConfigError, match="layer_sync='soon' is none of auto, event, stream, forward"):
        Device("soon")


def layer(**backend: bool) -> SimpleNamespace:
    return SimpleNamespace(get_attn_backend=lambda: SimpleNamespace(**backend))


BEFORE, WITHIN = (layer(forward_includes_kv_cache_update=within) for within in (False, True))
SILENT, RECURRENT = layer(), layer()
RECURRENT.get_state_shape = None


@pytest.mark.parametrize(
    ("layers", "expected"),
    [([BEFORE], False), ([BEFORE, WITHIN], True), ([SILENT], True), ([], True), ([BEFORE, RECURRENT], False)],
)
def test_one_backend_that_writes_late_delays_all_layers(layers: list[Any], expected: bool) -> None:
    """And so does one that does not say: a layer may be handed over later, never earlier. Recurrent layers have no hooks."""
    assert attention_writes_kv(layers) is expected


def test_a_host_has_nothing_to_wait_for() -> None:
    """A CPU kernel has returned when its hook runs."""
    stream = recorder(torch.device("cpu"), attention_writes_kv=False)

    assert stream.record() is None
    stream.synchronize()
    assert (stream.device_type, stream.attention_writes_kv) == ("cpu", False)
