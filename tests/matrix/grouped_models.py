"""Tiny models whose KV cache groups differ by more than a window: chunked local attention, blocks of different sizes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from baton.deploy.embedded_model import tokenizer as tokens
from tests.matrix.models import GROUPED, Recipe

# Per-layer embeddings, and heads of another size in layers that attend to everything: vLLM gives those shorter blocks.
_GEMMA4: Final = {
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": tokens.VOCABULARY_SIZE,
    "pad_token_id": 0,
}

GROUPED_MODELS: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "llama4": Recipe(
            "Llama4",
            {
                "intermediate_size_mlp": 256,
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 2,
                "attention_chunk_size": 256,
                "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
                "no_rope_layers": [1, 1, 1, 0],
                "moe_layers": [1, 3],
                "pad_token_id": 0,
            },
            config="Llama4Text",
            defaults=GROUPED,
            chunk=256,
        ),
        "gemma2": Recipe("Gemma2", {"query_pre_attn_scalar": 32, "pad_token_id": 0}, window=256, defaults=GROUPED),
        "gemma4": Recipe(
            "Gemma4",
            {
                **_GEMMA4,
                "num_global_key_value_heads": 1,
                "num_hidden_layers": 6,
                "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
                "num_kv_shared_layers": 0,
            },
            config="Gemma4Text",
            window=256,
            defaults=GROUPED,
        ),
        "gemma4-shared": Recipe(
            "Gemma4",
            {
                **_GEMMA4,
                "num_global_key_value_heads": 2,
                "num_hidden_layers": 6,
                "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
                "num_kv_shared_layers": 2,
            },
            config="Gemma4Text",
            window=256,
            defaults=GROUPED,
        ),
    }
)
