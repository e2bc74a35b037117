"""A node whose engine has died ends; one whose engine runs does not."""

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest

from baton.node import engine_watch
from baton.node.drain import StopSignals
from baton.node.engine_watch import EngineWatch

PATIENCE_S = 60.0


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What vLLM's application holds: an engine that runs, and a server that serves."""
    monkeypatch.setattr(engine_watch, "LOOK_S", 0.001)
    monkeypatch.setattr(engine_watch, "bound_end", lambda: None)
    return SimpleNamespace(engine_client=SimpleNamespace(is_running=True), server=SimpleNamespace(should_exit=False))


async def test_the_server_ends_with_its_engine(state: SimpleNamespace) -> None:
    watch = EngineWatch(state)
    watch.start()
    await asyncio.sleep(0.05)
    assert not state.server.should_exit

    state.engine_client.is_running = False
    await watched(watch)

    assert state.server.should_exit


@pytest.mark.parametrize(
    ("told_to_stop", "keeps_alive", "hurries", "ends"),
    [(False, "0", True, True), (True, "0", False, True), (False, "1", False, False)],
)
async def test_the_end_is_hurried_where_it_is_not_vllms_order(
    state: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    *,
    told_to_stop: bool,
    keeps_alive: str,
    hurries: bool,
    ends: bool,
) -> None:
    """A drained node ends with status 0, however long vLLM's shutdown takes; a server may be set to outlive its engine."""
    hurried: list[bool] = []
    monkeypatch.setattr(engine_watch, "bound_end", lambda: hurried.append(True))
    monkeypatch.setattr(engine_watch, "STOP_SIGNALS", signals := StopSignals())
    monkeypatch.setenv("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", keeps_alive)
    if told_to_stop:
        signals.record_stop()
    state.engine_client.is_running = False
    watch = EngineWatch(state)

    watch.start()
    await watched(watch)

    assert hurried == [True] * hurries
    assert state.server.should_exit == ends


def test_a_process_that_does_not_end_by_itself_is_ended() -> None:
    """VLLM's shutdown may wait for what no longer answers."""
    script = "from baton.node import engine_watch; import time; engine_watch.END_S = 0.1; engine_watch.bound_end(); time.sleep(60)"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.returncode == engine_watch.EXIT_ENGINE_ENDED
    assert "has not ended within 0.1 s" in done.stderr


async def test_a_watch_that_is_stopped_looks_no_more(state: SimpleNamespace) -> None:
    watch = EngineWatch(state)
    watch.stop()
    watch.start()
    watch.stop()
    watch.stop()

    with pytest.raises(asyncio.CancelledError):
        await watched(watch)


async def watched(watch: EngineWatch) -> None:
    assert watch._task is not None
    await asyncio.wait_for(watch._task, PATIENCE_S)
