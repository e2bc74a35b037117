"""Tiny models with random weights, one of each kind of attention and MLP, written once and kept for the next run.

Their text means nothing; their KV caches have the shapes of the real ones'. Weights are drawn wide, so that what stands
in the cache decides about the next token: in float32 a block that is missing or stale shows in the logprobs.

    python -m tests.matrix.models FOLDER     writes all of them
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from baton.deploy.embedded_model import tokenizer as tokens

CONTEXT_TOKENS: Final = 4096
CACHE: Final = Path.home() / ".cache" / "baton" / "matrix-models"
RECIPE: Final = "recipe.json"
SEED: Final = 9

DECODER: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "vocab_size": tokens.VOCABULARY_SIZE,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT_TOKENS,
        "initializer_range": 0.1,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)
_MLA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "num_key_value_heads": 4,
        "kv_lora_rank": 512,  # with the next: the 576 elements a token that vLLM's kernels know
        "qk_rope_head_dim": 64,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    }
)
# Where a CPU has AMX, vLLM takes a backend that knows bfloat16 alone. This one has blocks of 16 tokens; vLLM then computes
# prompts whole and keeps no prefix cache. Seen with a plain server: other tokens for a prompt alone and among three.
_MLA_FLAGS: Final = ("--attention-backend", "CPU_MLA")


class Recipe(NamedTuple):
    """Two classes of transformers', what differs from the defaults, and what a server must be told."""

    family: str  # of `<family>Config` and `<family>ForCausalLM`
    changes: Mapping[str, Any]
    flags: Sequence[str] = ()  # of every server with this model
    is_repeatable: bool = True  # vLLM gives the same tokens for a prompt alone and among others


MODELS: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "gqa": Recipe("Llama", {}),
        "mqa": Recipe("Llama", {"num_key_value_heads": 1}),
        "qk-norm": Recipe("Qwen3", {"head_dim": 32}),
        "moe": Recipe("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        "moe-qk-norm": Recipe(
            "Qwen3Moe", {"head_dim": 32, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
        ),
        "mla-v2": Recipe("DeepseekV2", {**_MLA, "topk_method": "greedy"}, _MLA_FLAGS, is_repeatable=False),
        "mla-v3": Recipe("DeepseekV3", {**_MLA, "topk_method": "noaux_tc"}, _MLA_FLAGS, is_repeatable=False),
    }
)


def ensure(name: str, folder: Path = CACHE) -> Path:
    """Return where a model lies, and write it unless it is there."""
    recipe = MODELS[name]
    return ensure_written(folder / name, recipe.family, {**DECODER, **recipe.changes})


def ensure_written(place: Path, family: str, settings: Mapping[str, Any], config: str = "") -> Path:
    """Write a model unless it is there; return its place.

    It is built beside its place and moved there whole, so that two sessions may do so at once.

    Args:
        place: its folder.
        family: of `<family>Config` and `<family>ForCausalLM`.
        settings: of its configuration.
        config: where that class is called otherwise.
    """
    recipe = json.dumps({"seed": SEED, "family": family, **settings}, indent=2) + "\n"
    if (place / RECIPE).is_file() and (place / RECIPE).read_text() == recipe:
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as partial:
        made = Path(partial) / place.name
        _write(made, family, settings, config or family)
        (made / RECIPE).write_text(recipe)
        shutil.rmtree(place, ignore_errors=True)  # of another recipe, or half a one
        made.replace(place)
    return place


def _write(folder: Path, family: str, settings: Mapping[str, Any], config: str) -> None:
    import torch  # these take seconds to import, and a model that is there needs neither
    import transformers

    made = getattr(transformers, f"{config}Config")(**settings)
    torch.manual_seed(SEED)
    getattr(transformers, f"{family}ForCausalLM")(made).save_pretrained(folder)
    tokens.write(tokens.load(), folder, CONTEXT_TOKENS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.matrix.models FOLDER")
    for each in MODELS:
        print(ensure(each, Path(sys.argv[1])), flush=True)
