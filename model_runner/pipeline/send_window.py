"""Sends that travel while the stage computes its next step.

    step n      forward ─ copy into slot 0 ─ send ──────────────┐
    step n + 1            forward ─ copy into slot 1 ─ send ────┼───────┐
    step n + 2                      forward ─ wait for slot 0 ──┘ copy into slot 0 ─ send

gloo reads a tensor when the receiver asks for it, not when it is posted, so that a tensor that is written in between
arrives with another step's values (vLLM #54962). What a model returns may be a buffer that its next step writes: the
receive buffer of a stage in the middle, a captured graph's output. Only a copy is ours to keep until it has been read,
and a slot is written when its earlier send has ended and not before.
"""

from collections.abc import Callable

import torch

from baton.model_runner.pipeline.handles import SENDING, Handle, Tensors, told_as, wait_for

SLOTS = 2


class SendWindow:
    """Posts each send from a buffer of its own."""

    def __init__(self, post: Callable[..., list[Handle]], *, timeout_s: float, slots: int = SLOTS) -> None:
        """`post` posts a message and returns its handles; it reads the tensors until these are done, `timeout_s` at most."""
        self._post = post
        self._timeout_s = timeout_s
        self._slots = [_Slot() for _ in range(slots)]
        self.sent = 0
        self.handles = 0  # of asynchronous sends

    def send(self, tensors: Tensors, **how: object) -> list[Handle]:
        """Send without waiting for the receiver, unless it is `slots` messages behind; no handle that is returned has to be waited for.

        Raises `PipelineError`: this or an earlier send failed, or that one took too long.
        """
        slot = self._slots[self.sent % len(self._slots)]
        wait_for(slot.take_handles(), self._timeout_s, SENDING)
        with told_as(SENDING):
            slot.handles = self._post(slot.copy(tensors), **how)
        self.sent += 1
        self.handles += len(slot.handles)
        return []


class _Slot:
    """Memory for one message, and the handles of the send that reads it."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []
        self._buffers: dict[str, torch.Tensor] = {}

    def take_handles(self) -> list[Handle]:
        """Return the handles, and forget them: each is waited for once."""
        taken, self.handles = self.handles, []
        return taken

    def copy(self, tensors: Tensors) -> Tensors:
        return {
            name: self._copy_one(name, value) if isinstance(value, torch.Tensor) else value
            for name, value in tensors.items()
        }

    def _copy_one(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.dtype != tensor.dtype or buffer.numel() < tensor.numel():
            buffer = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
            self._buffers[name] = buffer
        return buffer[: tensor.numel()].view(tensor.shape).copy_(tensor)
