"""When the process of a node's further host ends."""

import signal
from collections.abc import Iterator

import pytest

from baton.node import follower
from baton.node.follower import EXIT_FAILED, Stop


@pytest.fixture(autouse=True)
def _leave_signals_alone() -> Iterator[None]:
    """Whatever a test does, the next one finds the handlers and the timer as they were."""
    kinds = (signal.SIGTERM, signal.SIGALRM)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for kind, handler in before.items():
        signal.signal(kind, handler)


def test_the_first_host_may_finish_with_these_ranks_until_a_second_sigterm() -> None:
    """SIGTERM reaches all hosts at once, and the first one drains with all ranks."""
    Stop(60.0).take_signals()

    signal.raise_signal(signal.SIGTERM)

    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60.0
    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == EXIT_FAILED


def test_nothing_waits_for_a_first_host_that_never_ends() -> None:
    Stop(0.01).take_signals()
    signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        signal.sigtimedwait([], 10)  # a handler runs when the alarm comes


def test_a_vllm_without_the_parser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "_PARSERS", ("no.such.module",))

    with pytest.raises(ImportError, match="parser of its server's arguments"):
        follower._make_parser()
