"""What the connector asks of a transfer engine, and no more.

A prefill rank has one `SendingEngine`. A decode rank has several `ReceivingEngine`s over the same memory, its *fence
domains*: closing one ends every write that came through it and leaves the others alone (E3: nothing short of it does).
"""

from collections.abc import Sequence
from typing import Protocol

from baton.kv_connector.layout.copy_plan import CopyPlan
from baton.kv_connector.layout.regions import Span


class Push(Protocol):
    """One bounded push call in flight."""

    def poll(self) -> bool | None:
        """Ask how it stands, without waiting: None while it is running, then a result that is final.

        True: every write was acknowledged by the receiver. False: some write failed; bytes may still land (E1).
        """
        ...


class SendingEngine(Protocol):
    """The prefill rank's end. Not thread-safe beyond what each engine says: one sender thread owns it."""

    def submit(self, target: str, plan: CopyPlan) -> Push:
        """Start writing the copies of `plan` into the memory of `target`, a receiver's `session`.

        Never raises for the peer's faults: a submission that failed gives a push whose `poll()` is False.
        `EngineError`: a copy's source lies outside the registered spans; nothing has been submitted.
        """
        ...


class ReceivingEngine(Protocol):
    """One fence domain of a decode rank."""

    @property
    def session(self) -> str:
        """What senders name as `target`, `host:port`."""
        ...

    def close(self) -> None:
        """The fence: once it has returned, nothing lands through this engine any more. Idempotent.

        May take a second and hold the GIL (Mooncake).
        """
        ...


class EngineFactory(Protocol):
    """Makes the engines of one process; `EngineError`: one does not start or refuses the memory."""

    def sender(self, spans: Sequence[Span]) -> SendingEngine:
        """Make a sending engine that may read `spans`, `(address, length)` in bytes."""
        ...

    def receiver(self, spans: Sequence[Span]) -> ReceivingEngine:
        """Make a receiving engine whose peers may write into `spans`."""
        ...

    def close(self) -> None:
        """Close every engine made here. Idempotent."""
        ...
