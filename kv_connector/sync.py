"""Decides when a layer may be read (`layer_sync`).

The model thread hands layers to the sender together with what the sender has to wait for. A policy is chosen once.
All of them obey I1: ready is a point on the model stream that the device has passed, never a token counter.

           what is handed over        who waits for the device
    event    each layer               the sender, for an event recorded behind the layer
    stream   each layer               the model thread, in the hook before the next layer's attention; the sender never
    forward  all layers, after the    the sender, for an event recorded behind the pass
             forward pass

Layers without hooks are handed over at the end of the step, and every layer once per step. On a device without streams,
such as a CPU, the kernel has returned when the hook runs, and there is nothing to wait for.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kv_connector.errors import ConfigError
from kv_connector.metadata import Progress

if TYPE_CHECKING:
    import torch


class Awaitable(Protocol):
    """Something on the device that will have completed."""

    def synchronize(self) -> None:
        """Block until it has."""
        ...


class Handover(NamedTuple):
    """Layers of one step that are written once `done` has completed."""

    prompts: Sequence[Progress]
    layers: Sequence[int]
    done: Awaitable | None  # None: already complete


Hand = Callable[[Handover], None]
Record = Callable[[], Awaitable | None]  # records an event behind everything issued so far


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStream:
    """The stream that the model thread issues to, and what is known of the device behind it."""

    device_type: str  # as torch says it: "cuda", "npu", "cpu"
    record: Record
    synchronize: Callable[[], None]  # blocks until everything issued so far has completed
    attention_writes_kv: bool = True  # False: a layer's KV has been issued before its attention is about to be

    def __call__(self) -> Awaitable | None:
        """Record an event: whoever needs no more than a `Record` may take a stream for one."""
        return self.record()

    @classmethod
    def of(cls, record: Record) -> "ModelStream":
        """Return `record` if it is a stream, else a stream that is synchronised by waiting for an event."""
        if isinstance(record, ModelStream):
            return record

        def synchronize() -> None:
            event = record()
            if event is not None:
                event.synchronize()

        return cls(device_type="cpu", record=record, synchronize=synchronize)


class LayerSync(Protocol):
    """Decides at which hook which layers are handed over."""

    def begin_step(self, prompts: Sequence[Progress]) -> None:
        """A forward pass over these prompts begins; empty: nothing to push."""
        ...

    def attention_begins(self, layer: int) -> None:
        """Everything before the layer's attention has been issued to the device."""
        ...

    def layer_written(self, layer: int) -> None:
        """The layer's attention, and with it its KV, has been issued to the device."""
        ...

    def end_step(self) -> None:
        """The forward pass has been issued: hand over what no hook covered."""
        ...


class ForwardSync:
    """One hand-over per forward pass (the whole-prompt baseline)."""

    def __init__(self, layers: int, hand: Hand, stream: ModelStream) -> None:
        self._layers = range(layers)
        self._hand = hand
        self._record = stream.record
        self._prompts: Sequence[Progress] = ()

    def begin_step(self, prompts: Sequence[Progress]) -> None:
        """See `LayerSync.begin_step`."""
        self._prompts = prompts

    def attention_begins(self, layer: int) -> None:
        """Nothing: the whole pass is handed over at once."""

    def layer_written(self, layer: int) -> None:
        """Nothing: the whole pass is handed over at once."""

    def end_step(self) -> None:
        """See `LayerSync.end_step`."""
        if self._prompts:
            self._hand(Handover(self._prompts, self._layers, self._record()))
        self._prompts = ()


class EventSync:
    """An event behind each layer; the sender waits for it, the model thread never does."""

    def __init__(self, layers: int, hand: Hand, stream: ModelStream) -> None:
        self._layers = layers
        self._hand = hand
        self._record = stream.record
        self._prompts: Sequence[Progress] = ()
        self._open: set[int] = set()  # layers of this step not handed over yet

    def begin_step(self, prompts: Sequence[Progress]) -> None:
        """See `LayerSync.begin_step`."""
        self._prompts = prompts
        self._open = set(range(self._layers)) if prompts else set()

    def attention_begins(self, layer: int) -> None:
        """Nothing: the layer's own hook comes."""

    def layer_written(self, layer: int) -> None:
        """Hand the layer over, once: a second hook is that of a layer which only reads shared KV."""
        if layer in self._open:
            self._open.remove(layer)
            self._hand(Handover(self._prompts, (layer,), self._record()))

    def end_step(self) -> None:
        """See `LayerSync.end_step`."""
        if self._open:
            self._hand(Handover(self._prompts, sorted(self._open), self._record()))
        self._prompts, self._open = (), set()


class StreamSync:
    """The model thread waits for its stream before each attention, and hands over what has then been written.

    That is the layer before, whose attention has been issued, and the layer itself where the backend does not leave
    the writing of its KV to the attention (trap 19: most of vLLM's do not; it gains a layer).
    """

    def __init__(self, layers: int, hand: Hand, stream: ModelStream) -> None:
        self._layers = layers
        self._hand = hand
        self._synchronize = stream.synchronize
        self._attention_writes_kv = stream.attention_writes_kv
        self._prompts: Sequence[Progress] = ()
        self._open: set[int] = set()  # layers of this step whose KV has not been issued, as far as we know
        self._issued: list[int] = []  # issued, perhaps not written yet, not handed over

    def begin_step(self, prompts: Sequence[Progress]) -> None:
        """See `LayerSync.begin_step`."""
        self._prompts = prompts
        self._open = set(range(self._layers)) if prompts else set()
        self._issued = []

    def attention_begins(self, layer: int) -> None:
        """Wait for the stream and hand over what has been issued to it."""
        if not self._attention_writes_kv:
            self._issue(layer)
        self._hand_over()

    def layer_written(self, layer: int) -> None:
        """Remember the layer, once; the next hook waits for it."""
        self._issue(layer)

    def end_step(self) -> None:
        """Wait for the last layer and for those without hooks, unless all have been handed over."""
        self._issued += sorted(self._open)
        self._hand_over()
        self._prompts, self._open = (), set()

    def _issue(self, layer: int) -> None:
        if layer in self._open:
            self._open.remove(layer)
            self._issued.append(layer)

    def _hand_over(self) -> None:
        if self._issued:
            self._synchronize()
            self._hand(Handover(self._prompts, tuple(self._issued), None))
            self._issued = []


POLICIES: dict[str, type[ForwardSync] | type[EventSync] | type[StreamSync]] = {
    "event": EventSync,
    "stream": StreamSync,
    "forward": ForwardSync,
}


def resolve_layer_sync(name: str, device_type: str) -> str:
    """Return the policy that `name` stands for: `auto` is `stream` on an NPU, whose events can hang before CANN 8.5.

    Raises:
        ConfigError: there is no such policy.
    """
    if name == "auto":
        return "stream" if device_type == "npu" else "event"
    if name not in POLICIES:
        raise ConfigError(f"layer_sync={name!r} is none of {', '.join(('auto', *POLICIES))}")
    return name


def make_layer_sync(name: str, layers: int, hand: Hand, stream: ModelStream) -> LayerSync:
    """Return the policy called `name`; raises `ConfigError` if there is none."""
    return POLICIES[resolve_layer_sync(name, stream.device_type)](layers, hand, stream)


def attention_writes_kv(backends: Iterable[object]) -> bool:
    """Whether some of vLLM's attention backend classes write the KV cache in their attention op, not before it.

    One that does not say is taken to do so, and so is the absence of any: both only hand a layer over later.
    """
    includes = [getattr(backend, "forward_includes_kv_cache_update", True) for backend in backends]
    return any(includes) or not includes


def recorder(device: "torch.device", *, attention_writes_kv: bool = True) -> ModelStream:
    """Return the model thread's current stream on `device`, whichever that is when it is asked."""
    if device.type == "cpu":
        return ModelStream(
            device_type="cpu",
            record=lambda: None,
            synchronize=lambda: None,
            attention_writes_kv=attention_writes_kv,
        )
    import torch

    module = torch.get_device_module(device)

    def record() -> Awaitable:
        event = torch.Event(device=device, blocking=True)  # a waiter sleeps instead of spinning
        event.record()
        return event

    return ModelStream(
        device_type=device.type,
        record=record,
        synchronize=lambda: module.current_stream(device).synchronize(),
        attention_writes_kv=attention_writes_kv,
    )
