"""What is refused at start, with the reason."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from kv_connector.errors import ConfigError
from kv_connector.supported import check_supported

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=64)


def engine(*, sleep: bool = False, speculative: object = None, **parallel: Any) -> Any:
    """A supported engine's configuration, with changes."""
    plain = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "use_ubatching": False,
    }
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**plain | parallel),
        model_config=SimpleNamespace(enable_sleep_mode=sleep),
        speculative_config=speculative,
    )


def groups(*specs: Any) -> Any:
    """A KV cache configuration with a group for each spec."""
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


@pytest.mark.parametrize("spec", [FULL, SimpleNamespace(first_spec=FULL)], ids=["full", "full, of several sizes"])
def test_one_rank_with_full_attention_is_supported(spec: Any) -> None:
    """The common case raises nothing."""
    check_supported(engine(), groups(spec))

    with pytest.raises(ConfigError):
        check_supported(engine(tensor_parallel_size=2), groups(spec))


@pytest.mark.parametrize(
    ("config", "cache", "words"),
    [
        (engine(tensor_parallel_size=2), groups(FULL), "tensor and pipeline parallelism"),
        (engine(pipeline_parallel_size=2), groups(FULL), "tensor and pipeline parallelism"),
        (engine(data_parallel_size=2), groups(FULL), "data parallelism"),
        (engine(prefill_context_parallel_size=2), groups(FULL), "context parallelism"),
        (engine(use_ubatching=True), groups(FULL), "dual-batch overlap"),
        (engine(sleep=True), groups(FULL), "sleep mode"),
        (engine(), groups(FULL, FULL), "several KV cache groups"),
        (engine(), groups(WINDOW), "SlidingWindowSpec"),
        (engine(speculative=object()), groups(FULL), "speculative decoding"),
    ],
)
def test_everything_else_is_refused_with_the_reason(config: Any, cache: Any, words: str) -> None:
    """The message says what to change."""
    with pytest.raises(ConfigError, match=words):
        check_supported(config, cache)
