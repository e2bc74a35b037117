"""Decides when a layer may be read (`layer_sync`).

The model thread hands layers to the sender together with what the device has to complete before they are read; the
sender has the waiter (`waiter.py`) wait for that, and never waits itself. A policy is chosen once. All of them obey I1:
ready is a point on the model stream that the device has passed, never a token counter.

           what is handed over        who waits for the device
    event    each layer               the waiter, for an event recorded behind the layer's KV
    stream   each layer               the model thread, in the hook before the next layer's attention
    forward  all layers, after the    the waiter, for an event recorded behind the pass
             forward pass

Layers without hooks are handed over at the end of the step, and every layer once per step. Layers that are too small
to be worth a push of their own are handed over several at once. On a device without streams, such as a CPU, the kernel
has returned when the hook runs, and there is nothing to wait for.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.vllm_compat import cann
from baton.kv_connector.vllm_compat.backends import keeps_state

if TYPE_CHECKING:
    import torch


class DeviceEvent(Protocol):
    """Something on the device that will have completed."""

    def synchronize(self) -> None:
        """Block until it has completed."""
        ...


class Handover(NamedTuple):
    """Layers of one step that are written once `done` has completed."""

    prompts: Sequence[Progress]
    layers: Sequence[int]
    done: DeviceEvent | None  # None: already complete


Hand = Callable[[Handover], None]
Record = Callable[[], DeviceEvent | None]  # records an event behind everything issued so far


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStream:
    """The stream that the model thread issues to, and what is known of the device behind it."""

    device_type: str  # as torch says it: "cuda", "npu", "cpu"
    record: Record
    synchronize: Callable[[], None]  # blocks until everything issued so far has completed
    attention_writes_kv: bool = True  # False: a layer's KV is issued before its attention


HOST_STREAM = ModelStream(device_type="cpu", record=lambda: None, synchronize=lambda: None)  # nothing to wait for


class LayerSync:
    """Which layers of a step are handed over at which hook: here none, all leave when the step ends (`forward`)."""

    def __init__(self, layers: int, hand: Hand, stream: ModelStream) -> None:
        self._layers = layers
        self._hand = hand
        self._stream = stream
        self._prompts: Sequence[Progress] = ()
        self._at_once = 1
        self._open: set[int] = set()  # layers of this step whose KV has not been issued, as far as we know
        self._issued: list[int] = []  # issued, perhaps not written yet, not handed over

    def begin_step(self, prompts: Sequence[Progress], at_once: int = 1) -> None:
        """A forward pass over these prompts begins; empty: nothing to push. `at_once`: layers to hand over together."""
        self._prompts, self._at_once = prompts, at_once
        self._open = set(range(self._layers)) if prompts else set()
        self._issued = []

    def attention_begins(self, layer: int) -> None:
        """Everything before the layer's attention has been issued to the device."""

    def kv_issued(self, layer: int) -> None:
        """The layer's KV has been issued to the device, with or without its attention."""

    def end_step(self) -> None:
        """The forward pass has been issued: hand over what is left, the last layers and those without hooks."""
        self._issued += sorted(self._open)
        self._hand_over(1)
        self._prompts, self._open = (), set()

    def _issue(self, layer: int) -> None:
        """Take the layer, once: a second hook is that of a layer which only reads shared KV."""
        if layer in self._open:
            self._open.remove(layer)
            self._issued.append(layer)

    def _hand_over(self, at_least: int) -> None:
        if len(self._issued) >= at_least:
            self._hand(Handover(self._prompts, tuple(self._issued), self._ready()))
            self._issued = []

    def _ready(self) -> DeviceEvent | None:
        """What tells that everything issued so far has been written; None: it has."""
        return self._stream.record()


class EventSync(LayerSync):
    """An event behind the layers; the sender waits for it, the model thread never does.

    A layer leaves at the hook before its attention, one layer earlier than at the hook behind it, unless the attention
    backend writes the KV itself (few of vLLM's do).
    """

    def attention_begins(self, layer: int) -> None:
        """The layer's KV has been issued, unless its attention is what writes it."""
        if not self._stream.attention_writes_kv:
            self._issue(layer)
            self._hand_over(self._at_once)

    def kv_issued(self, layer: int) -> None:
        """The layer's KV has been issued in any case."""
        self._issue(layer)
        self._hand_over(self._at_once)


class StreamSync(LayerSync):
    """The model thread waits for its stream before an attention, so that what it hands over is complete.

    That is the layer itself or, where the attention writes the KV, the layer before; at the end of the step, the last.
    """

    def attention_begins(self, layer: int) -> None:
        """Wait for the stream and hand over what has been issued to it."""
        if not self._stream.attention_writes_kv:
            self._issue(layer)
        self._hand_over(self._at_once)

    def kv_issued(self, layer: int) -> None:
        """Remember the layer; the next hook waits for it."""
        self._issue(layer)

    def _ready(self) -> DeviceEvent | None:
        self._stream.synchronize()
        return None


POLICIES: dict[str, type[LayerSync]] = {"event": EventSync, "stream": StreamSync, "forward": LayerSync}


def resolve_layer_sync(name: str, device_type: str) -> str:
    """Return the policy that `name` stands for: `auto` is `event`, but `stream` on an NPU whose events may hang.

    Raises `ConnectorConfigError` if there is no such policy.
    """
    if name == "auto":
        return "stream" if device_type == "npu" and not cann.events_complete(cann.version()) else "event"
    if name not in POLICIES:
        raise ConnectorConfigError(f"layer_sync={name!r} is none of {', '.join(('auto', *POLICIES))}")
    return name


def make_layer_sync(name: str, layers: int, hand: Hand, stream: ModelStream) -> LayerSync:
    """Return the policy called `name`; raises `ConnectorConfigError` if there is none."""
    return POLICIES[resolve_layer_sync(name, stream.device_type)](layers, hand, stream)


def attention_writes_kv(layers: Iterable[Any]) -> bool:
    """Whether the backend of some of vLLM's attention layers writes the KV cache in its attention op, not before it.

    One that does not say is taken to do so, and so is the absence of any: both only hand a layer over later. Recurrent
    layers have no hook and do not count.
    """
    backends = [layer.get_attn_backend() for layer in layers if not keeps_state(layer)]
    includes = [getattr(backend, "forward_includes_kv_cache_update", True) for backend in backends]
    return any(includes) or not includes


def recorder(device: "torch.device", *, attention_writes_kv: bool = True) -> ModelStream:
    """Return the model thread's current stream on `device`, whichever that is when it is asked."""
    if device.type == "cpu":
        return replace(HOST_STREAM, attention_writes_kv=attention_writes_kv)
    import torch

    module = torch.get_device_module(device)

    def record() -> DeviceEvent:
        # A waiter sleeps; CUDA's `torch.Event` would spin (vLLM #47081).
        event: DeviceEvent = module.Event(blocking=True)
        module.current_stream(device).record_event(event)
        return event

    return ModelStream(
        device_type=device.type,
        record=record,
        synchronize=lambda: module.current_stream(device).synchronize(),
        attention_writes_kv=attention_writes_kv,
    )
