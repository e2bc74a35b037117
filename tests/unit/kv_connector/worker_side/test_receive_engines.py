"""The thread that makes and fences receiving engines must outlive every failure: without it nothing is ever fenced."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from baton.kv_connector.errors import EngineError
from baton.kv_connector.worker_side import receive_engines
from baton.kv_connector.worker_side.receive_engines import ReceivingEngines

PATIENCE_S = 10.0


class Engine:
    """A receiver whose fence fails a few times."""

    def __init__(self, session: str, failures: int) -> None:
        self.session = session
        self.failures = failures
        self.closed = 0

    def close(self) -> None:
        """Raise until it has failed often enough."""
        if self.failures:
            self.failures -= 1
            raise EngineError("still in use")
        self.closed += 1


class Factory:
    """Makes engines, after failing a few times."""

    def __init__(self, *, failures: int = 0, close_failures: int = 0) -> None:
        self.failures = failures
        self.close_failures = close_failures
        self.made: list[Engine] = []
        self.closed = 0

    def receiver(self, spans: object) -> Engine:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("foreign code failed")
        self.made.append(Engine(f"engine-{len(self.made)}", self.close_failures))
        return self.made[-1]

    def close(self) -> None:
        """All engines are gone."""
        self.closed += 1


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr(receive_engines, "RETRY_S", 0.01)


@contextmanager
def running(
    factory: Factory, added: Callable[[int, str], None], fenced: Callable[[str], None] = lambda _: None
) -> Iterator[ReceivingEngines]:
    """The thread."""
    engines = ReceivingEngines(factory, [], added=added, fenced=fenced)  # type: ignore[arg-type]  # no sender is made
    engines.start()
    try:
        yield engines
    finally:
        engines.stop()
        assert not engines._thread.is_alive()
        assert factory.closed == 1


def test_a_failure_of_foreign_code_is_tried_again() -> None:
    """An exception of an unexpected type must not end the thread."""
    added = threading.Event()
    factory = Factory(failures=2)

    with running(factory, lambda *_: added.set()) as engines:
        engines.want(0)

        assert added.wait(PATIENCE_S)
    assert len(factory.made) == 1


def test_a_domain_that_is_asked_for_while_its_engine_is_added_gets_one_engine() -> None:
    """The control thread sees the domain as missing until `added` has returned, and asks again in that time."""
    factory = Factory()
    second = threading.Event()

    def added(domain: int, _: str) -> None:
        if domain == 0:
            engines.want(0)
            engines.want(1)
        else:
            second.set()

    with running(factory, added) as engines:
        engines.want(0)

        assert second.wait(PATIENCE_S)
    assert len(factory.made) == 2


def test_an_engine_that_is_not_gone_is_not_reported_as_fenced() -> None:
    """I3: the blocks behind it stay out of the pool until a later try has really destroyed it."""
    made, gone = threading.Event(), threading.Event()
    left: list[int] = []
    factory = Factory(close_failures=2)

    def fenced(_: str) -> None:
        left.append(factory.made[0].failures)
        gone.set()

    with running(factory, lambda *_: made.set(), fenced) as engines:
        engines.want(0)
        assert made.wait(PATIENCE_S)
        engines.fence("engine-0")

        assert gone.wait(PATIENCE_S)
    assert left == [0]


def test_a_fence_that_could_not_be_told_is_told_again_and_not_made_again() -> None:
    """The engine is gone: its name says nothing any more, and nothing is left to close."""
    made, gone = threading.Event(), threading.Event()
    told: list[str] = []
    factory = Factory()

    def fenced(session: str) -> None:
        told.append(session)
        if len(told) == 1:
            raise LookupError(session)
        gone.set()

    with running(factory, lambda *_: made.set(), fenced) as engines:
        engines.want(0)
        assert made.wait(PATIENCE_S)
        engines.fence("engine-0")

        assert gone.wait(PATIENCE_S)
    assert (told, factory.made[0].closed) == (["engine-0", "engine-0"], 1)
