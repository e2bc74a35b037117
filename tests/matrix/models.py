"""Tiny models with random weights, one of each kind of attention, MLP and recurrent layer, written once and kept for the next run.

Their text means nothing; their KV caches have the shapes and the groups of the real ones'. Weights are drawn wide, so that
what stands in the cache decides about the next token: in float32 a block that is missing or stale shows in the logprobs.
"""

import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from baton.deploy.embedded_model import tokenizer as tokens

CONTEXT_TOKENS: Final = 4096
CACHE: Final = Path.home() / ".cache" / "baton" / "matrix-models"
RECIPE: Final = "recipe.json"
SEED: Final = 9
# Of a checkpoint's tensors and of its configuration, which it changes in place: what is written in their place.
Rewrite = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]

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
MLA: Final[Mapping[str, Any]] = MappingProxyType(
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
GROUPED: Final[Mapping[str, Any]] = MappingProxyType({**DECODER, "head_dim": 32})
_UNCACHED: Final = ("--no-enable-prefix-caching",)
# Where a CPU has AMX, vLLM takes a backend that knows bfloat16 alone. This one has blocks of 16 tokens; vLLM then computes
# prompts whole and keeps no prefix cache. Seen with a plain server: other tokens for a prompt alone and among three.
MLA_FLAGS: Final = ("--attention-backend", "CPU_MLA")


class Recipe(NamedTuple):
    """Two classes of transformers', what differs from the defaults, and what a server must be told."""

    family: str  # of `<family>Config` and `<family>ForCausalLM`
    changes: Mapping[str, Any]
    flags: Sequence[str] = ()  # of every server with this model
    is_repeatable: bool = True  # vLLM gives the same tokens for a prompt alone and among others
    config: str = ""  # where its class is called otherwise
    window: int = 0  # tokens
    chunk: int = 0  # tokens, of chunked local attention
    has_states: bool = False  # of recurrent layers
    defaults: Mapping[str, Any] = DECODER
    block_tokens: int = 128  # of a state that is cached; on a CPU a step may be no longer
    rewrite: Rewrite | None = None  # for what transformers has no class for


MODELS: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "gqa": Recipe("Llama", {}),
        "mqa": Recipe("Llama", {"num_key_value_heads": 1}),
        "qk-norm": Recipe("Qwen3", {"head_dim": 32}),
        "moe": Recipe("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        "moe-qk-norm": Recipe(
            "Qwen3Moe", {"head_dim": 32, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
        ),
        "mla-v2": Recipe("DeepseekV2", {**MLA, "topk_method": "greedy"}, MLA_FLAGS, is_repeatable=False),
        "mla-v3": Recipe("DeepseekV3", {**MLA, "topk_method": "noaux_tc"}, MLA_FLAGS, is_repeatable=False),
        "mistral": Recipe("Mistral", {}, window=200, defaults=GROUPED),
        "gemma3": Recipe(
            "Gemma3",
            {
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
                "query_pre_attn_scalar": 32,
                "pad_token_id": 0,
            },
            window=256,
            defaults=GROUPED,
            config="Gemma3Text",
        ),
        "gpt-oss": Recipe(
            "GptOss",
            {
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "max_position_embeddings": 32 * CONTEXT_TOKENS,  # as its way of stretching positions wants it
            },
            window=128,
            defaults=GROUPED,
        ),
        # The last two layers keep no KV: they read that of the last full and the last sliding one before them.
        "gemma3n": Recipe(
            "Gemma3n",
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
            window=256,
            defaults=GROUPED,
            config="Gemma3nText",
        ),
        # No attention at all.
        "mamba2": Recipe(
            "Mamba2",
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
            has_states=True,
            defaults={},
            flags=_UNCACHED,
        ),
        # Each layer has both, and blocks for attention are made as long as a state.
        "falcon-h1": Recipe(
            "FalconH1",
            {
                "mamba_d_ssm": 256,
                "mamba_n_heads": 8,
                "mamba_d_head": 32,
                "mamba_d_state": 64,
                "mamba_n_groups": 2,
                "mamba_chunk_size": 64,
                "pad_token_id": 0,
            },
            has_states=True,
            defaults=GROUPED,
            flags=_UNCACHED,
            block_tokens=256,
        ),
        # B and C of all heads in one group, which ranks do not divide. Its blocks must be as long on one rank as on two.
        "granite-4": Recipe(
            "GraniteMoeHybrid",
            {
                "layer_types": ["mamba", "mamba", "mamba", "attention"],
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "shared_intermediate_size": 64,
                "mamba_n_heads": 8,
                "mamba_d_head": 32,
                "mamba_d_state": 64,
                "mamba_n_groups": 1,
                "mamba_chunk_size": 64,
                "mamba_expand": 2,
                "pad_token_id": 0,
            },
            has_states=True,
            flags=_UNCACHED,
            block_tokens=256,
        ),
        # Three layers with a gated delta net to one with attention. vLLM's kernels for CPUs know bfloat16 alone.
        "qwen3-next": Recipe(
            "Qwen3Next",
            {
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 128,  # vLLM's kernels know no other
                "linear_value_head_dim": 128,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 64,
                "shared_expert_intermediate_size": 64,
            },
            has_states=True,
            defaults=GROUPED,
            flags=(*_UNCACHED, "--dtype", "bfloat16"),
            block_tokens=640,
            is_repeatable=False,
        ),
    }
)


def lengths(recipe: Recipe, block_tokens: int) -> Sequence[int]:
    """Prompt lengths, tokens: up to a block of a node, and long.

    With chunks, those whose last token is the first or the last of one. With windows, also those of which a window begins in the last token of a block: there vLLM frees, when a prompt ends, a
    block that the decode node still reads. With states, those about the end of a block, and one of which a single token is
    left for the prefill node.
    """
    if recipe.chunk:
        return 1, 100, recipe.chunk, recipe.chunk + 1, 5 * recipe.chunk, 5 * recipe.chunk + 1, 1500
    if recipe.window:
        edge = recipe.window - 1
        return 1, 100, edge + 3 * 128, edge + 9 * 128, 10 * 128 + 1, 1500
    if recipe.has_states:
        edge = block_tokens if block_tokens < 1500 else 640
        return 1, 2, 3, 100, edge, edge + 1, edge + 2, min(2 * edge + 1, 1500), 1500
    return 1, 40, 100, 300, 700, 1500


def ensure(name: str, made_of: Recipe, folder: Path = CACHE) -> Path:
    """Return where a model lies, and write it unless it is there.

    It is built beside its place and moved there whole, so that two sessions may do so at once.
    """
    place = folder / name
    window = {"sliding_window": made_of.window} if made_of.window else {}
    settings = {**made_of.defaults, **window, **made_of.changes}
    rewrite = {"rewrite": inspect.getsource(inspect.getmodule(made_of.rewrite))} if made_of.rewrite else {}  # type: ignore[arg-type]
    recipe = json.dumps({"seed": SEED, "family": made_of.family, **settings, **rewrite}, indent=2) + "\n"
    if (place / RECIPE).is_file() and (place / RECIPE).read_text() == recipe:
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as partial:
        made = Path(partial) / name
        _write(made, made_of.family, settings, made_of.config or made_of.family)
        if made_of.rewrite:
            _rewrite(made, made_of.rewrite)
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


def _rewrite(folder: Path, rewrite: Rewrite) -> None:
    from safetensors.torch import load_file, save_file

    weights, settings = folder / "model.safetensors", folder / "config.json"
    config = json.loads(settings.read_text())
    tensors = rewrite(load_file(weights), config)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights, {"format": "pt"})
    settings.write_text(json.dumps(config, indent=2))
