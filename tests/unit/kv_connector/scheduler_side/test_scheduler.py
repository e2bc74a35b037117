"""The scheduler that a node gives to vLLM."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from baton.kv_connector.scheduler_side import scheduler
from baton.kv_connector.scheduler_side.first_output import FirstOutput
from baton.kv_connector.scheduler_side.scheduler import MAKE_SCHEDULER, has_our_scheduler, make_scheduler
from baton.kv_connector.scheduler_side.start_tokens import StartTokens
from baton.kv_connector.scheduler_side.whole_media import WholeMedia
from baton.node.startup.arguments import SCHEDULER


@pytest.mark.parametrize(("asynchronous", "base"), [(False, Scheduler), (True, AsyncScheduler)])
def test_it_is_the_scheduler_that_vllm_would_choose(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, base: type
) -> None:
    """With `--scheduler-cls` vLLM itself would no longer choose."""
    monkeypatch.setattr(Scheduler, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(AsyncScheduler, "__init__", lambda *_, **__: None)
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous))

    made = make_scheduler(config)

    assert type(made).__mro__[1:5] == (StartTokens, FirstOutput, WholeMedia, base)


@pytest.mark.parametrize(("named", "ours"), [(MAKE_SCHEDULER, True), (None, False), ("their.Scheduler", False)])
def test_an_engine_with_another_scheduler_is_known(named: str | None, ours: bool) -> None:
    """By the flag, which node and connector write alike."""
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(scheduler_cls=named))

    assert has_our_scheduler(config) is ours
    assert f"{scheduler.__name__}.make_scheduler" == MAKE_SCHEDULER == SCHEDULER
