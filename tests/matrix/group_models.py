"""Tiny models with sliding windows or recurrent layers, random weights: written once and kept.

Their KV caches have the groups of the real ones'.

Prompt lengths are chosen where a window begins in the last token of a block, besides round ones: there vLLM frees, when a
prompt ends, a block that the decode node still reads. Of recurrent layers they are those about the end of a block, and a
prompt of which a single token is left for the prefill node.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from baton.deploy.embedded_model import tokenizer as tokens
from tests.matrix.models import CACHE, CONTEXT_TOKENS, DECODER, ensure_written

_DECODER: Final[Mapping[str, Any]] = MappingProxyType({**DECODER, "head_dim": 32})


class Recipe(NamedTuple):
    """Two classes of transformers', the window, and what else differs from the defaults."""

    family: str  # of `<family>Config` and `<family>ForCausalLM`
    window: int  # 0: there are recurrent layers instead
    changes: Mapping[str, Any]
    config: str = ""  # where its class is called otherwise
    groups: int = 1
    defaults: Mapping[str, Any] = _DECODER
    flags: Sequence[str] = ()  # of all servers
    block_tokens: int = 128
    is_repeatable: bool = True  # one plain server gives the same tokens whatever else it computes


WITHOUT_PREFIX_CACHE: Final = ("--no-enable-prefix-caching",)


MODELS: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "mistral": Recipe("Mistral", 200, {}),
        "gemma3": Recipe(
            "Gemma3",
            256,
            {
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
                "query_pre_attn_scalar": 32,
                "pad_token_id": 0,
            },
            config="Gemma3Text",
            groups=4,
        ),
        "gpt-oss": Recipe(
            "GptOss",
            128,
            {
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "max_position_embeddings": 32 * CONTEXT_TOKENS,  # as its way of stretching positions wants it
            },
            groups=2,
        ),
        # The last two layers keep no KV: they read that of the last full and the last sliding one before them.
        "gemma3n": Recipe(
            "Gemma3n",
            256,
            {
                "num_hidden_layers": 6,
                "layer_types": ["sliding_attention", "full_attention"] * 3,
                "num_kv_shared_layers": 2,
                "vocab_size_per_layer_input": tokens.VOCABULARY_SIZE,
                "hidden_size_per_layer_input": 16,
                "laurel_rank": 8,
                "altup_num_inputs": 2,
                "pad_token_id": 0,
            },
            config="Gemma3nText",
            groups=2,
        ),
        # No attention at all.
        "mamba2": Recipe(
            "Mamba2",
            0,
            {
                "vocab_size": tokens.VOCABULARY_SIZE,
                "hidden_size": 128,
                "num_hidden_layers": 4,
                "num_heads": 8,
                "head_dim": 32,
                "state_size": 16,
                "n_groups": 2,
                "chunk_size": 64,
                "initializer_range": 0.1,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
            },
            defaults={},
            flags=WITHOUT_PREFIX_CACHE,
            block_tokens=CONTEXT_TOKENS,
        ),
        # Each layer has both, and blocks for attention are made as long as a state.
        "falcon-h1": Recipe(
            "FalconH1",
            0,
            {
                "mamba_d_ssm": 256,
                "mamba_n_heads": 8,
                "mamba_d_head": 32,
                "mamba_d_state": 64,
                "mamba_n_groups": 2,
                "mamba_chunk_size": 64,
                "pad_token_id": 0,
            },
            groups=2,
            flags=WITHOUT_PREFIX_CACHE,
            block_tokens=256,
        ),
        # Three layers with a gated delta net to one with attention. vLLM's kernels for CPUs know bfloat16 alone.
        "qwen3-next": Recipe(
            "Qwen3Next",
            0,
            {
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                "linear_num_key_heads": 1,
                "linear_num_value_heads": 2,
                "linear_key_head_dim": 128,  # vLLM's kernels know no other
                "linear_value_head_dim": 128,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 64,
                "shared_expert_intermediate_size": 64,
            },
            groups=4,
            flags=(*WITHOUT_PREFIX_CACHE, "--dtype", "bfloat16"),
            block_tokens=640,
            is_repeatable=False,
        ),
    }
)


def lengths(name: str) -> Sequence[int]:
    """Prompt lengths, tokens: up to a block, at the edge (see above), one token in the last block, and long."""
    window, block_tokens = MODELS[name].window, MODELS[name].block_tokens
    if not window:
        edge = min(block_tokens, 640)
        return 1, 2, 3, 100, edge, edge + 1, edge + 2, 2 * edge + 1, 1500
    edge = window - 1
    return 1, 100, edge + 3 * block_tokens, edge + 9 * block_tokens, 10 * block_tokens + 1, 1500


def ensure(name: str, folder: Path = CACHE) -> Path:
    """Return where a model lies, and write it unless it is there."""
    recipe = MODELS[name]
    window = {"sliding_window": recipe.window} if recipe.window else {}
    return ensure_written(folder / name, recipe.family, {**recipe.defaults, **window, **recipe.changes}, recipe.config)
