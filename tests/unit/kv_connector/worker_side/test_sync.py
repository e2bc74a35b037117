"""When a layer is handed to the sender, and what anybody has to wait for."""

from typing import Any

import pytest
import torch

from baton.kv_connector.errors import ConfigError
from baton.kv_connector.handoff.metadata import Progress
from baton.kv_connector.worker_side.sync import (
    EventSync,
    ForwardSync,
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
            self.sync.layer_written(layer)
        self.sync.end_step()

    def synchronize(self) -> None:
        """As an event: nothing runs here."""

    def _record(self) -> "Device":
        self.log.append("recorded")
        return self

    def _hand(self, handover: Handover) -> None:
        self.handed.append(handover)
        self.log.append(tuple(handover.layers))


def test_event_hands_over_layer_by_layer() -> None:
    """Each layer with an event of its own, recorded behind it; the model thread never waits."""
    device = Device("event")

    device.run_step([0, 1, 2])

    assert device.log == ["recorded", (0,), "recorded", (1,), "recorded", (2,)]
    assert all(handover.done is device for handover in device.handed)


def test_event_hands_over_before_the_attention_if_the_kv_is_written_before_it() -> None:
    """The layer's event is recorded one hook earlier, so that its attention is already overlapped."""
    device = Device("event", by_attention=False)
    device.sync.begin_step(PROMPTS)

    device.sync.attention_begins(0)

    assert device.log == ["recorded", (0,)]


@pytest.mark.parametrize("name", ["event", "stream"])
@pytest.mark.parametrize("by_attention", [True, False])
def test_small_layers_are_handed_over_together(name: str, by_attention: bool) -> None:
    """One event or one wait for all of them; what is left over goes at the end of the step."""
    device = Device(name, by_attention=by_attention, layers=5)

    device.run_step([0, 1, 2, 3, 4], at_once=2)

    assert [handover.layers for handover in device.handed] == [(0, 1), (2, 3), (4,)]
    assert device.log.count("recorded" if name == "event" else "synchronised") == 3


def test_a_step_forgets_what_the_last_one_did_not_hand_over() -> None:
    """A pass that failed has written nothing that may be pushed."""
    device = Device("event")
    device.sync.begin_step(PROMPTS, 3)
    device.sync.layer_written(0)

    device.sync.begin_step([])
    device.sync.end_step()

    assert device.handed == []


def test_stream_hands_over_the_layer_before() -> None:
    """The attention writes the KV: a layer is complete once the next one's hook has waited, the last at the end."""
    device = Device("stream", by_attention=True)

    device.run_step([0, 1, 2])

    assert device.log == ["synchronised", (0,), "synchronised", (1,), "synchronised", (2,)]
    assert all(handover.done is None for handover in device.handed)


def test_stream_waits_at_the_hook_of_the_next_layer() -> None:
    """Not at the end of the layer itself: the device has work queued while the host waits for nothing."""
    device = Device("stream", by_attention=True)
    device.sync.begin_step(PROMPTS)

    device.sync.attention_begins(0)
    device.sync.layer_written(0)
    assert device.log == []
    device.sync.attention_begins(1)
    assert device.log == ["synchronised", (0,)]


def test_stream_hands_over_the_layer_itself_if_its_kv_is_written_before_the_attention() -> None:
    """Trap 19: one layer earlier, and nothing is left for the end of the step."""
    device = Device("stream", by_attention=False)
    device.sync.begin_step(PROMPTS)

    device.sync.attention_begins(0)

    assert device.log == ["synchronised", (0,)]
    device.run_step([0, 1, 2])
    assert device.log[2:] == ["synchronised", (0,), "synchronised", (1,), "synchronised", (2,)]


def test_forward_hands_over_once_per_pass() -> None:
    """The whole-prompt baseline records one event."""
    device = Device("forward")

    device.run_step([0, 1, 2])

    assert device.log == ["recorded", (0, 1, 2)]


@pytest.mark.parametrize(
    ("name", "by_attention", "expected"),
    [
        ("event", True, [(0,), (2,), (1, 3)]),
        ("stream", True, [(0,), (2, 1, 3)]),
        ("stream", False, [(0,), (2,), (1, 3)]),
    ],
)
def test_layers_without_a_hook_are_handed_over_at_the_end_of_the_step(
    name: str, by_attention: bool, expected: list[tuple[int, ...]]
) -> None:
    """Mamba layers and the like never fire a hook."""
    device = Device(name, by_attention=by_attention, layers=4)

    device.run_step([0, 2])

    assert [entry for entry in device.log if isinstance(entry, tuple)] == expected
    assert device.log[-2] in ("recorded", "synchronised")


@pytest.mark.parametrize("name", ["event", "stream"])
@pytest.mark.parametrize("by_attention", [True, False])
def test_a_layer_that_is_hooked_twice_is_handed_over_once(name: str, by_attention: bool) -> None:
    """A second hook is that of a layer which only reads shared KV: nothing is waited for either."""
    device = Device(name, by_attention=by_attention)

    device.run_step([0, 1, 1, 2])

    assert [entry for entry in device.log if isinstance(entry, tuple)] == [(0,), (1,), (2,)]
    assert len(device.log) == 6


@pytest.mark.parametrize("name", ["event", "stream", "forward"])
def test_a_step_without_prompts_costs_nothing(name: str) -> None:
    """Decode steps and warm-up passes run the same hooks: no event, no wait, nothing handed over."""
    device = Device(name)
    device.run_step([0, 1, 2])
    device.log.clear()

    device.sync.begin_step([])
    device.sync.attention_begins(0)
    device.sync.layer_written(0)
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
        ("forward", "npu", ForwardSync),
    ],
)
def test_auto_is_stream_on_an_npu_and_event_elsewhere(name: str, device_type: str, policy: type) -> None:
    """What the configuration names is taken at its word."""
    assert type(Device(name, device_type=device_type).sync) is policy


def test_an_unknown_policy_is_named() -> None:
    """A bad value stops the process with a sentence."""
    with pytest.raises(ConfigError, match="layer_sync='soon' is none of auto, event, stream, forward"):
        Device("soon")


class Before:
    forward_includes_kv_cache_update = False


class Within:
    forward_includes_kv_cache_update = True


class Silent:
    pass


@pytest.mark.parametrize(
    ("backends", "expected"),
    [([Before], False), ([Before, Within], True), ([Silent], True), ([], True)],
)
def test_one_backend_that_writes_late_delays_all_layers(backends: list[Any], expected: bool) -> None:
    """And so does one that does not say: a layer may be handed over later, never earlier."""
    assert attention_writes_kv(backends) is expected


def test_a_host_has_nothing_to_wait_for() -> None:
    """A CPU kernel has returned when its hook runs."""
    stream = recorder(torch.device("cpu"), attention_writes_kv=False)

    assert stream() is None
    stream.synchronize()
    assert (stream.device_type, stream.attention_writes_kv) == ("cpu", False)
    assert ModelStream.of_record(stream) is stream


def test_a_plain_recorder_is_synchronised_through_its_events() -> None:
    """Waiting for an event behind everything is waiting for the stream."""

    class Event:
        waits = 0

        def synchronize(self) -> None:
            self.waits += 1

    event = Event()
    stream = ModelStream.of_record(lambda: event)
    stream.synchronize()

    assert stream() is event
    assert event.waits == 1
    ModelStream.of_record(lambda: None).synchronize()


EVENT = object()


class FakeAccelerator:
    """What torch says of a device that this machine lacks."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def current_stream(self, device: torch.device) -> "FakeAccelerator":
        self.log.append(f"current stream of {device}")
        return self

    def synchronize(self) -> None:
        self.log.append("stream synchronised")

    def Event(self, *, blocking: bool = False) -> object:  # noqa: N802  # torch's name
        self.log.append("blocking event" if blocking else "spinning event")
        return EVENT

    def record_event(self, event: object) -> None:
        assert event is EVENT
        self.log.append("event recorded")


def test_an_accelerator_is_asked_through_torchs_neutral_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is looked up when it is waited for, on our device; a waiter for an event sleeps."""
    accelerator = FakeAccelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda device: accelerator)
    stream = recorder(torch.device("cuda", 1))

    stream.synchronize()
    event = stream()

    assert event is EVENT
    assert accelerator.log == [
        "current stream of cuda:1",
        "stream synchronised",
        "blocking event",
        "current stream of cuda:1",
        "event recorded",
    ]
    assert (stream.device_type, stream.attention_writes_kv) == ("cuda", True)
