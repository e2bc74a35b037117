"""What is refused at start, with the reason."""

from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.errors import ConfigError
from kv_connector.supported import check_supported


def engine(**changes: Any) -> Any:
    """A supported engine's configuration, with changes to its parallelism or speculation."""
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "enable_dbo": False}
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel | {k: v for k, v in changes.items() if k in parallel}),
        speculative_config=changes.get("speculative_config"),
    )


def groups(count: int) -> Any:
    """A KV cache configuration with so many groups."""
    return SimpleNamespace(kv_cache_groups=[object()] * count)


def test_one_rank_and_one_group_are_supported() -> None:
    """The common case raises nothing."""
    assert check_supported(engine(), groups(1)) is None  # type: ignore[func-returns-value]  # that it returns is the point


@pytest.mark.parametrize(
    ("config", "cache", "words"),
    [
        (engine(tensor_parallel_size=2), groups(1), "tensor and pipeline parallelism"),
        (engine(pipeline_parallel_size=2), groups(1), "tensor and pipeline parallelism"),
        (engine(enable_dbo=True), groups(1), "dual-batch overlap"),
        (engine(), groups(2), "several KV cache groups"),
        (engine(speculative_config=object()), groups(1), "speculative decoding"),
    ],
)
def test_everything_else_is_refused_with_the_reason(config: Any, cache: Any, words: str) -> None:
    """The message says what to change."""
    with pytest.raises(ConfigError, match=words):
        check_supported(config, cache)
