"""A transfer engine that now and then changes one byte of what it has delivered, whichever engine it really is.

After a push has succeeded, one more write overwrites a single byte at the receiver: damage that no engine reports.
"""

import ctypes
from collections.abc import Callable, Sequence

from baton.kv_connector.engine.base import EngineFactory, Push, ReceivingEngine, SendingEngine
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from baton.kv_connector.layout.regions import Span

SCRATCH_BYTES = 4096
FLIPPED_BIT = 0x40  # of the highest byte of a float32: its exponent


class FlippingFactory:
    """Makes the engines of `inner`; before each push that ends well, `flip` is asked whether to damage it."""

    def __init__(self, inner: EngineFactory, flip: Callable[[], bool]) -> None:
        self._inner = inner
        self._flip = flip

    def sender(self, spans: Sequence[Span]) -> "FlippingSender":
        scratch = (ctypes.c_ubyte * SCRATCH_BYTES)()
        own = (ctypes.addressof(scratch), SCRATCH_BYTES)
        return FlippingSender(self._inner.sender([*spans, own]), scratch, self._flip)

    def receiver(self, spans: Sequence[Span]) -> ReceivingEngine:
        return self._inner.receiver(spans)

    def close(self) -> None:
        self._inner.close()


class FlippingSender:
    """A prefill rank's end."""

    def __init__(self, inner: SendingEngine, scratch: "ctypes.Array[ctypes.c_ubyte]", flip: Callable[[], bool]) -> None:
        self._inner = inner
        self._scratch = scratch
        self._flip = flip

    def submit(self, target: str, copies: CopyPlan) -> "FlippingPush":
        damage = self._damage(list(copies)[-1]) if self._flip() else None
        return FlippingPush(self._inner, target, self._inner.submit(target, copies), damage)

    def _damage(self, copy: Copy) -> CopyPlan:
        offset = copy.length // 2 // 4 * 4 + 3
        self._scratch[0] = ctypes.string_at(copy.src + offset, 1)[0] ^ FLIPPED_BIT
        return CopyPlan.of([Copy(ctypes.addressof(self._scratch), copy.dst + offset, 1)])


class FlippingPush:
    """One push call, and the write that damages what it has delivered."""

    def __init__(self, sender: SendingEngine, target: str, push: Push, damage: CopyPlan | None) -> None:
        self._sender = sender
        self._target = target
        self._push = push
        self._damage = damage

    def poll(self) -> bool | None:
        ended = self._push.poll()
        if ended and self._damage is not None:
            self._push, self._damage = self._sender.submit(self._target, self._damage), None
            return None
        return ended
