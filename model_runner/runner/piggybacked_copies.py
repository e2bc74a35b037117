"""What else a step leaves on the device for the host: drafts and counts, which travel with its tokens.

vLLM copies each by itself into a pinned buffer, on a stream and with an event of its own, and waits for the event where
it reads the buffer. A `Companion` takes the place of both, and vLLM's own lines do something else:

    buffer[:n].copy_(source, non_blocking=True)    the source is noted
    event.record()                                 nothing
    (the step's tokens are submitted)              all that is noted travels in their copy
    event.synchronize()                            waits for that copy; then the buffer has what vLLM expects

What is copied after its step's tokens have left travels alone: the drafts of a drafter that needs tokens on the host.
"""

from typing import Any

import torch

from baton.model_runner.tokens.handles import Tensors
from baton.model_runner.tokens.lanes import LaneEvent
from baton.model_runner.tokens.transfer import Transfer


class Companion:
    """Stands in for a pinned buffer of vLLM's and for its event. Of the model thread."""

    def __init__(
        self, name: str, event: LaneEvent, party: "PiggybackedCopies", buffer: torch.Tensor | None = None
    ) -> None:
        """`event` is for copies that vLLM issues itself; `buffer` is vLLM's own, on the host."""
        self.name = name
        self.buffer: Any = buffer
        self._event = event
        self._party = party
        self._target: torch.Tensor | None = None  # a part of the buffer that a companion has asked to fill
        self._handle: Any = None  # of the copy that what it shall hold travels in

    # --- as the buffer ---

    def __getitem__(self, where: Any) -> "_Part":
        """Return a part, into which copies are noted, and which otherwise is vLLM's."""
        return _Part(self, self.buffer[where])

    def __setitem__(self, where: Any, value: Any) -> None:
        """Write on the host, in the place of what is on its way."""
        self._target = self._handle = None
        self._party.forget(self)
        self.buffer[where] = value

    def note(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Have a tensor travel with the step's tokens, in the place of one that was noted before."""
        self._target, self._handle = target, None
        self._party.note(self, source)

    # --- as the event ---

    def record(self, *stream: Any) -> None:
        """Nothing is to be recorded of a copy that has been noted; anything else is vLLM's."""
        if self._target is None:
            self._event.record(*stream)

    def synchronize(self) -> None:
        """Have in the buffer what was copied last. Raises as `Handle.result`; of vLLM's copies the device's error."""
        if self._target is None:
            self._event.synchronize()
        elif self._handle is None:
            self._party.submit_alone()
        self.land()

    # --- for the step's companions ---

    def left_with(self, handle: Any) -> None:
        self._handle = handle

    @torch.inference_mode()  # as vLLM's model thread, which has made the tensors
    def land(self) -> None:
        """Wait for it, if it is on its way, and copy it into the buffer, once."""
        if self._target is not None and self._handle is not None:
            self._target.copy_(self._handle.result()[self.name])
            self._target = self._handle = None


class _Part:
    """A part of vLLM's buffer."""

    def __init__(self, whole: Companion, part: torch.Tensor) -> None:
        self._whole = whole
        self._part = part

    def copy_(self, source: torch.Tensor, *, non_blocking: bool) -> None:
        """Note a copy from the device; vLLM has none here that blocks."""
        assert non_blocking
        self._whole.note(self._part, source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


class PiggybackedCopies:
    """Those of one runner. Submits steps, as a `Transfer`."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._noted: dict[Companion, torch.Tensor] = {}  # on the device; held here until the transfer holds them
        self._left: list[Companion] = []  # with the last copy

    def note(self, companion: Companion, source: torch.Tensor) -> None:
        self._noted[companion] = source  # in the place of what was noted of it before

    def forget(self, companion: Companion) -> None:
        self._noted.pop(companion, None)

    def submit(self, tensors: Tensors) -> Any:
        """Send a step's tensors, with all that has been noted, in one copy. Raises as `TokenTransfer.submit`."""
        more = {companion.name: source for companion, source in self._noted.items()}
        handle = self._transfer.submit({**tensors, **more})
        self._left = [*self._noted]
        self._noted.clear()  # not before: who asks after a submit that failed has the same error
        for companion in self._left:
            companion.left_with(handle)
        return handle

    def submit_alone(self) -> None:
        """Send what has been noted, if there is any, without tokens: these have left, or come by vLLM's own copies."""
        if self._noted:
            self.submit({})

    def land(self) -> None:
        """Have on the host what left with the last copy; vLLM expects that where its wait for tokens covers these copies too."""
        for companion in self._left:
            companion.land()
