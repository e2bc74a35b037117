"""What is refused at start, with the reason."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec

from baton.kv_connector import supported
from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.layout.groups import CACHED_STATES, ONE_GROUP, Group
from baton.kv_connector.layout.groups import STATE as STATE_ALONE
from baton.kv_connector.scheduler_side.scheduler import MAKE_SCHEDULER
from baton.kv_connector.supported import check_both_ways, check_supported

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32)
CHUNKED = ChunkedLocalAttentionSpec(
    block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, attention_chunk_size=64
)
STATE = MambaSpec(block_size=4096, shapes=((2, 2),), dtypes=(torch.float32,))
OF_KIND = {kind.name: replace(STATE, mamba_type=kind) for kind in MambaAttentionBackendEnum}
CACHED = replace(STATE, block_size=16, mamba_cache_mode="align")


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
    caches: bool = True,
    device: str = "cuda",
    step_tokens: int | None = None,
    long_prefill: int = 0,
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
        scheduler_config=SimpleNamespace(
            scheduler_cls=scheduler,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
            max_num_scheduled_tokens=step_tokens,
            long_prefill_token_threshold=long_prefill,
        ),
        device_config=SimpleNamespace(device_type=device),
        kv_transfer_config=SimpleNamespace(
            is_kv_producer=is_producer, kv_connector_extra_config={"role": role} if role else {}
        ),
        cache_config=SimpleNamespace(
            block_size=16,
            calculate_kv_scales=own_scales,
            use_replayssm=replay,
            prefix_match_unit=unit,
            enable_prefix_caching=caches,
        ),
    )


def drafts(method: str, tokens: int = 2) -> Any:
    return SimpleNamespace(method=method, num_speculative_tokens=tokens)


def drafting(tokens: int = 2, **more: Any) -> Any:
    return engine(speculative=drafts("ngram", tokens), **more)


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
    check_supported(drafting(), groups(spec))


def test_a_producer_to_vllm_may_be_a_decode_node() -> None:
    """One that stands beside other connectors is both: it may have another scheduler."""
    check_supported(engine(is_producer=True, role="decode", scheduler="their.Scheduler"), groups(FULL, CACHED))


def test_answers_are_sent_out_of_a_prefix_cache_of_blocks() -> None:
    check_both_ways(engine(), ONE_GROUP, has_neighbours=False)
    check_both_ways(engine(), (Group(), Group()), has_neighbours=False)
    check_both_ways(engine(pipeline_parallel_size=2), ONE_GROUP, has_neighbours=False)


@pytest.mark.parametrize(
    ("config", "of", "beside", "words"),
    [
        (engine(), (Group(), CACHED_STATES), False, "recurrent layers (Mamba, GDN) keep a state"),
        (engine(), (STATE_ALONE,), False, "recurrent layers (Mamba, GDN) keep a state"),
        (engine(caches=False), ONE_GROUP, False, "sent out of vLLM's prefix cache, and it is off"),
        (engine(), (Group(), Group(window=64)), False, "no block of an answer"),
        (engine(), ONE_GROUP, True, "another KV connector in `beside`"),
        (drafting(pipeline_parallel_size=2), ONE_GROUP, False, "speculative decoding beside pipeline stages"),
    ],
)
def test_engines_that_cannot_send_answers_are_refused_by_name(
    config: Any, of: Sequence[Group], *, beside: bool, words: str
) -> None:
    """A node with `both_ways` has both sides or does not start: it says so by its setting, before the engine is there."""
    with pytest.raises(ConnectorConfigError, match=r"transfer\.both_ways .* turn it off") as refused:
        check_both_ways(config, of, has_neighbours=beside)

    assert words in str(refused.value)


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
    for spec in (STATE, OF_KIND["GDN_ATTN"]):
        check_supported(drafting(), groups(FULL, spec))
    check_supported(drafting(7), groups(FULL, STATE))


def test_drafts_beside_states_need_a_vllm_that_counts_the_accepted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one has steps without drafts begin from the first block, whatever was accepted before (`zero_draft_decode_mask` of 0.32)."""
    monkeypatch.setattr(supported, "COUNTS_ACCEPTED_DRAFTS", False)

    with pytest.raises(
        ConnectorConfigError,
        match=r"recurrent layers \(Mamba, GDN\) needs vLLM 0\.32 or newer: after a step without drafts",
    ):
        check_supported(drafting(), groups(FULL, STATE))


NOT_ALONE = r"with recurrent layers \(Mamba, GDN\) and no attention is not covered: vLLM does not count which drafts"
NOT_MEDUSA = r"recurrent layers \(Mamba, GDN\) has not been tried with method 'medusa': use one of ngram"
NOT_CACHED = r"\(Mamba, GDN\) and a prefix cache has not been tried: .* start with --no-enable-prefix-caching"
OUR_SCHEDULER = "needs the node's own scheduler: another one may end a prompt's chunks within blocks"
ROOM = "room for all streams in each step, .* set --max-num-batched-tokens to"


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
        (engine(speculative=drafts("dflash")), groups(FULL), "speculative decoding with method 'dflash'"),
        (drafting(), groups(FULL, FULL), "with method 'ngram' has not been tried with a sliding window"),
        (drafting(), groups(FULL, CHUNKED), "has not been tried with chunked local attention"),
        (engine(pipeline_parallel_size=2), groups(STATE), "have not been tried with pipeline stages"),
        (drafting(), groups(STATE), NOT_ALONE),
        (engine(speculative=drafts("medusa")), groups(FULL, STATE), NOT_MEDUSA),
        *(
            (
                drafting(),
                groups(FULL, STATE, spec),
                f"not covered for layers of kind {kind}: their kernels are not told",
            )
            for kind, spec in OF_KIND.items()
            if kind not in {"MAMBA2", "GDN_ATTN"}
        ),
        (drafting(device="cpu"), groups(FULL, STATE), "not covered on a cpu device"),
        (drafting(device="npu"), groups(FULL, STATE), "not covered on a npu device"),
        (drafting(8), groups(FULL, STATE), f"{ROOM} 2304 at least"),
        (drafting(step_tokens=767), groups(FULL, STATE), f"{ROOM} 768 at least"),
        (drafting(long_prefill=100), groups(FULL, STATE), "leave out --long-prefill-token-threshold"),
        (drafting(), groups(FULL, CACHED), NOT_CACHED),
        (engine(replay=True), groups(STATE), "--use-replayssm keeps parts"),
        (engine(is_producer=True, scheduler="their.Scheduler"), groups(FULL, CACHED), OUR_SCHEDULER),
        (engine(unit=8), groups(FULL, CACHED), "--prefix-match-unit lets a cached prefix end within a block"),
    ],
)
def test_everything_else_is_refused_with_the_reason(config: Any, cache: Any, words: str) -> None:
    """The message says what to change."""
    with pytest.raises(ConnectorConfigError, match=words):
        check_supported(config, cache)
