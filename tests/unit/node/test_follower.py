"""When the process of a node's further host ends."""

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
import vllm
from vllm.v1.executor import multiproc_executor

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


@pytest.mark.parametrize(("codes", "status"), [((0, 0), 0), ((0, -9), EXIT_FAILED), ((None, 1), EXIT_FAILED)])
def test_a_further_host_ends_with_its_ranks_and_says_whether_one_was_lost(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int | None, ...], status: int
) -> None:
    """They serve no HTTP and report to the first host; a SIGTERM leaves it its time to drain, and some more."""
    ranks = Mock(workers=[SimpleNamespace(proc=SimpleNamespace(exitcode=code)) for code in codes])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ranks.start_worker_monitor.side_effect = lambda *, inline: signal.raise_signal(signal.SIGTERM)
    engine, executor = MagicMock(), Mock(return_value=ranks)
    monkeypatch.setattr(vllm, "AsyncEngineArgs", Mock(from_cli_args=lambda arguments: engine), raising=False)
    monkeypatch.setattr(multiproc_executor, "MultiprocExecutor", executor)
    monkeypatch.setattr(follower, "_make_parser", lambda: lambda parser: parser)

    with pytest.raises(SystemExit) as ended:
        follower.follow([], 60.0)

    assert ended.value.code == status
    assert engine.create_engine_config.call_args.kwargs["headless"]
    executor.assert_called_once_with(engine.create_engine_config.return_value, monitor_workers=False)
    ranks.start_worker_monitor.assert_called_once_with(inline=True)
    ranks.shutdown.assert_called_once_with()
    assert 60.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60.0 + follower.OUTLIVE_S
