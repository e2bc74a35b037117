"""The scheduler that a node gives to vLLM."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from baton.kv_connector.scheduler_side import scheduler
from baton.kv_connector.scheduler_side.first_output import FirstOutput
from baton.kv_connector.scheduler_side.scheduler import MAKE_SCHEDULER, WholeMedia, has_our_scheduler, make_scheduler
from baton.kv_connector.scheduler_side.start_tokens import StartTokens
from baton.node.startup.arguments import SCHEDULER


@pytest.mark.parametrize(("asynchronous", "base"), [(False, Scheduler), (True, AsyncScheduler)])
def test_it_is_the_scheduler_that_vllm_would_choose(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, base: type
) -> None:
    """With `--scheduler-cls` vLLM itself would no longer choose."""
    monkeypatch.setattr(Scheduler, "__init__", lambda *_, **__: None)
    monkeypatch.setattr(AsyncScheduler, "__init__", lambda *_, **__: None)
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=asynchronous), cache_config=None)

    made = make_scheduler(config)

    assert type(made).__mro__[1:5] == (StartTokens, FirstOutput, WholeMedia, base)


def test_chunks_end_with_blocks_of_recurrent_layers_though_vllm_resets_their_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a state is cached for tokens that it is not of. Seen on a CPU, whose default are blocks of 128 tokens."""
    monkeypatch.setattr(Scheduler, "__init__", _init)
    cache = SimpleNamespace(block_size=256)
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(async_scheduling=False), cache_config=cache)
    made, chunks = make_scheduler(config), []
    config.cache_config.block_size = 128  # `VllmConfig.__post_init__`, when the engine has been made
    prompt: Any = SimpleNamespace(
        num_computed_tokens=0, num_prompt_tokens=1499, num_tokens=1499, shared_prefix_boundary=0
    )

    budget = 128  # another prompt has the rest of the first step
    while prompt.num_computed_tokens < 1499:
        wanted = min(budget, 1499 - prompt.num_computed_tokens)
        prompt.num_computed_tokens += made._mamba_block_aligned_split(prompt, wanted)
        chunks.append(prompt.num_computed_tokens)
        budget = 256

    assert chunks == [0, 256, 512, 768, 1024, 1280, 1499]


def _init(self: Any, *, vllm_config: Any) -> None:
    """What vLLM's scheduler has of its engine's configuration, as far as its chunks depend on that."""
    self.cache_config = vllm_config.cache_config
    self.block_size = self.hash_block_size = self.max_num_scheduled_tokens = 256
    self.scheduler_config = SimpleNamespace(long_prefill_token_threshold=0)
    self.mamba_partial_cache_hit = self.use_eagle_block_drop = self.mamba_shared_prefix_checkpoint = False
    self.mamba_has_prefill_checkpoint_blocks = False
    self.mamba_prefill_checkpoint_alignment = None


@pytest.mark.parametrize(("named", "ours"), [(MAKE_SCHEDULER, True), (None, False), ("their.Scheduler", False)])
def test_an_engine_with_another_scheduler_is_known(named: str | None, ours: bool) -> None:
    """By the flag, which node and connector write alike."""
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(scheduler_cls=named))

    assert has_our_scheduler(config) is ours
    assert f"{scheduler.__name__}.make_scheduler" == MAKE_SCHEDULER == SCHEDULER
