"""Decides when a layer may be read (`layer_sync`).

The model thread hands a layer to the sender together with what the sender has to wait for. A policy is chosen once.
All of them obey I1: ready is a device event, never a token counter. On a device without streams, such as a CPU, the
kernel has returned when the hook runs, and there is nothing to wait for.
"""

from collections.abc import Callable, Sequence
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


class LayerSync(Protocol):
    """Decides at which hook which layers are handed over."""

    def begin_step(self, prompts: Sequence[Progress]) -> None:
        """A forward pass over these prompts begins; empty: nothing to push."""
        ...

    def layer_written(self, layer: int) -> None:
        """The layer's KV has been issued to the device."""
        ...

    def end_step(self) -> None:
        """The forward pass has been issued: hand over what no hook covered."""
        ...


class ForwardSync:
    """One hand-over per forward pass (the whole-prompt baseline)."""

    def __init__(self, layers: int, hand: Hand, record: Record) -> None:
        self._layers = range(layers)
        self._hand = hand
        self._record = record
        self._prompts: Sequence[Progress] = ()

    def begin_step(self, prompts: Sequence[Progress]) -> None:
        """See `LayerSync.begin_step`."""
        self._prompts = prompts

    def layer_written(self, layer: int) -> None:
        """Nothing: the whole pass is handed over at once."""

    def end_step(self) -> None:
        """See `LayerSync.end_step`."""
        if self._prompts:
            self._hand(Handover(self._prompts, self._layers, self._record()))
        self._prompts = ()


class EventSync:
    """An event behind each layer; the sender waits for it, the model thread never does."""

    def __init__(self, layers: int, hand: Hand, record: Record) -> None:
        self._layers = layers
        self._hand = hand
        self._record = record
        self._prompts: Sequence[Progress] = ()
        self._open: set[int] = set()  # layers of this step not handed over yet

    def begin_step(self, prompts: Sequence[Progress]) -> None:
        """See `LayerSync.begin_step`."""
        self._prompts = prompts
        self._open = set(range(self._layers))

    def layer_written(self, layer: int) -> None:
        """Hand the layer over, once: a second hook is that of a layer which only reads shared KV."""
        if self._prompts and layer in self._open:
            self._open.remove(layer)
            self._hand(Handover(self._prompts, (layer,), self._record()))

    def end_step(self) -> None:
        """See `LayerSync.end_step`."""
        if self._prompts and self._open:
            self._hand(Handover(self._prompts, sorted(self._open), self._record()))
        self._prompts = ()


POLICIES: dict[str, type[ForwardSync] | type[EventSync]] = {
    "auto": EventSync,
    "event": EventSync,
    "forward": ForwardSync,
}


def make_layer_sync(name: str, layers: int, hand: Hand, record: Record) -> LayerSync:
    """Return the policy called `name`.

    Raises:
        ConfigError: there is no such policy.
    """
    if name not in POLICIES:
        raise ConfigError(f"layer_sync={name!r} is none of {', '.join(POLICIES)}")
    return POLICIES[name](layers, hand, record)


def recorder(device: "torch.device") -> Record:
    """Return what records an event on the current stream of `device`."""
    if device.type == "cpu":
        return lambda: None

    def record() -> Awaitable:
        import torch

        event = torch.Event(device=device, blocking=True)  # a waiter sleeps instead of spinning
        event.record()
        return event

    return record
