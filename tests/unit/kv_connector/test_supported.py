"""What is refused at start, with the reason."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec

from baton.kv_connector.errors import ConfigError
from baton.kv_connector.scheduler_side.scheduler import MAKE_SCHEDULER
from baton.kv_connector.supported import check_supported

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32)
CHUNKED = ChunkedLocalAttentionSpec(
    block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, attention_chunk_size=64
)
STATE = MambaSpec(block_size=4096, shapes=((2, 2),), dtypes=(torch.float32,))
CACHED = MambaSpec(block_size=16, shapes=((2, 2),), dtypes=(torch.float32,), mamba_cache_mode="align")


def engine(
    *,
    sleep: bool = False,
    speculative: object = None,
    own_scales: bool = False,
    replay: bool = False,
    unit: int | None = None,
    is_producer: bool = False,
    scheduler: str = MAKE_SCHEDULER,
    role: str | None = None,
    **parallel: Any,
) -> Any:
    """A supported engine's configuration, with changes."""
    plain = {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "use_ubatching": False,
        "distributed_executor_backend": "mp",
    }
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**plain | parallel),
        model_config=SimpleNamespace(enable_sleep_mode=sleep),
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(scheduler_cls=scheduler),
        kv_transfer_config=SimpleNamespace(
            is_kv_producer=is_producer, kv_connector_extra_config={"role": role} if role else {}
        ),
        cache_config=SimpleNamespace(
            block_size=16, calculate_kv_scales=own_scales, use_replayssm=replay, prefix_match_unit=unit
        ),
    )


def groups(*specs: Any) -> Any:
    """A KV cache configuration with a group for each spec."""
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs])


@pytest.mark.parametrize(
    "spec", [FULL, SimpleNamespace(kv_cache_specs={"a": FULL}, block_size=16)], ids=["full", "full, of several sizes"]
)
def test_full_attention_is_supported_on_any_number_of_ranks(spec: Any) -> None:
    """The common cases raise nothing."""
    check_supported(engine(), groups(spec))
    check_supported(engine(tensor_parallel_size=2, pipeline_parallel_size=2, data_parallel_size=2), groups(spec))
    check_supported(engine(tensor_parallel_size=2, nnodes=2), groups(spec))
    check_supported(engine(speculative=SimpleNamespace(method="ngram")), groups(spec))


def test_a_decode_node_that_is_to_send_too_takes_cached_states() -> None:
    """To vLLM it is a producer; with recurrent layers it sends nothing, and takes them as any decode node."""
    check_supported(engine(is_producer=True, role="decode", scheduler="their.Scheduler"), groups(FULL, CACHED))


def test_an_mtp_drafter_is_supported_beside_groups() -> None:
    """Its layers are in one of them, or in one of their own."""
    drafter = SimpleNamespace(method="mtp", draft_model_config=SimpleNamespace(hf_config=None))
    config = engine(speculative=drafter)
    config.num_prefill_lookahead_tokens = 1

    check_supported(config, groups(FULL, FULL))


def test_recurrent_layers_are_supported_on_several_ranks() -> None:
    """With layers that attend beside them, and alone."""
    check_supported(engine(), groups(FULL, STATE, STATE))
    check_supported(engine(tensor_parallel_size=2), groups(STATE))
    check_supported(engine(), groups(FULL, CACHED))
    check_supported(engine(is_producer=True), groups(FULL, CACHED))
    check_supported(engine(unit=8), groups(FULL, STATE))


@pytest.mark.parametrize(
    ("config", "cache", "words"),
    [
        (engine(prefill_context_parallel_size=2), groups(FULL), "prefill context parallelism"),
        (engine(decode_context_parallel_size=2), groups(FULL), "decode context parallelism"),
        (engine(distributed_executor_backend="ray"), groups(FULL), "start Baton on each host"),
        (engine(nnodes=2, data_parallel_size=2), groups(FULL), "a node of several hosts has one engine"),
        (engine(use_ubatching=True), groups(FULL), "dual-batch overlap"),
        (engine(sleep=True), groups(FULL), "sleep mode"),
        (engine(own_scales=True), groups(FULL), "each node scale its KV in its own way"),
        (
            engine(speculative=SimpleNamespace(method="dflash")),
            groups(FULL),
            "speculative decoding with method 'dflash'",
        ),
        (
            engine(speculative=SimpleNamespace(method="ngram")),
            groups(FULL, FULL),
            "speculative decoding with method 'ngram' has not been tried with a sliding window",
        ),
        (
            engine(speculative=SimpleNamespace(method="ngram")),
            groups(FULL, CHUNKED),
            "speculative decoding has not been tried with chunked local attention",
        ),
        (engine(pipeline_parallel_size=2), groups(STATE), "have not been tried with pipeline stages"),
        (
            engine(speculative=SimpleNamespace(method="ngram")),
            groups(STATE),
            "speculative decoding has not been tried with recurrent layers",
        ),
        (engine(replay=True), groups(STATE), "--use-replayssm keeps parts"),
        (
            engine(is_producer=True, scheduler="their.Scheduler"),
            groups(FULL, CACHED),
            "needs the node's own scheduler: another one may end a prompt's chunks within blocks",
        ),
        (engine(unit=8), groups(FULL, CACHED), "--prefix-match-unit lets a cached prefix end within a block"),
    ],
)
def test_everything_else_is_refused_with_the_reason(config: Any, cache: Any, words: str) -> None:
    """The message says what to change."""
    with pytest.raises(ConfigError, match=words):
        check_supported(config, cache)
