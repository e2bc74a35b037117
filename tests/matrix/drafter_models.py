"""Tiny models with an MTP drafter in their checkpoint (multi-token prediction): one layer that drafts from the target's states.

transformers knows no such layer. So a model of one layer more is saved, and the last layer's weights get the names, and the
projection beside them, that vLLM's class of the drafter reads.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tests.matrix.models import CONTEXT_TOKENS, DECODER, GROUPED, MLA, MLA_FLAGS, MODELS, Recipe, Rewrite

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

SEED: Final = 10
WIDTH: Final = 0.1  # of random weights, as of the rest
_EXPERTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "use_qk_norm": True,
    }
)


def _drafts(shape: Rewrite) -> Rewrite:
    """Return a rewrite that takes the last layer off the target and gives it to the drafter, as `shape` wants it."""

    def rewrite(tensors: "Tensors", config: dict[str, Any]) -> "Tensors":
        config["num_hidden_layers"] -= 1
        config["num_nextn_predict_layers"] = 1
        for name in ("layer_types", "mlp_layer_types"):
            if config.get(name):
                config[name] = config[name][:-1]
        return shape(tensors, config)

    return rewrite


def _mimo(tensors: "Tensors", config: dict[str, Any]) -> "Tensors":
    """A drafter that mirrors a target of one layer: it drafts well, and only with its KV of the prompt."""
    import torch

    hidden, drafter = config["hidden_size"], "model.mtp_layers.0."
    made = {name: tensor for name, tensor in tensors.items() if not name.startswith("model.layers.1.")}
    embedding = made["model.embed_tokens.weight"]
    # So that `token_layernorm` changes nothing; and what stands in the cache decides.
    made["model.embed_tokens.weight"] = embedding / embedding.pow(2).mean(-1, keepdim=True).sqrt()
    made["model.layers.0.self_attn.o_proj.weight"] = made["model.layers.0.self_attn.o_proj.weight"] * 6
    made |= {
        drafter + name.removeprefix("model.layers.0."): tensor.clone()
        for name, tensor in made.items()
        if name.startswith("model.layers.0.")
    }
    for norm in ("token_layernorm", "hidden_layernorm"):
        made[f"{drafter}{norm}.weight"] = torch.ones(hidden)
    made[f"{drafter}final_layernorm.weight"] = made["model.norm.weight"].clone()
    made[f"{drafter}input_proj.weight"] = torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], 1)
    config["architectures"] = ["MiMoForCausalLM"]
    return made


def _deepseek(tensors: "Tensors", config: dict[str, Any]) -> "Tensors":
    """The names of DeepSeek V3's and GLM-4's: numbered behind the target's layers."""
    import torch

    hidden, drafter = config["hidden_size"], f"model.layers.{config['num_hidden_layers']}."
    ones = {f"{drafter}{norm}.weight": torch.ones(hidden) for norm in ("enorm", "hnorm", "shared_head.norm")}
    return {
        **tensors,
        **ones,
        f"{drafter}eh_proj.weight": _drawn(hidden, 2 * hidden),
        f"{drafter}embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
        f"{drafter}shared_head.head.weight": tensors["lm_head.weight"].clone(),
    }


def _ernie(tensors: "Tensors", config: dict[str, Any]) -> "Tensors":
    """ERNIE's: a dense layer, whatever the target's are."""
    import torch

    hidden, width, block = config["hidden_size"], config["intermediate_size"], "model.mtp_block.0."
    made = _renamed(tensors, f"model.layers.{config['num_hidden_layers']}.", block)
    made = {name: tensor for name, tensor in made.items() if not name.startswith(f"{block}mlp")}
    draw = torch.Generator().manual_seed(SEED)
    shapes = {"gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width)}
    for name, shape in shapes.items():
        made[f"{block}mlp.{name}.weight"] = torch.randn(*shape, generator=draw) * WIDTH
    for norm in ("mtp_emb_norm", "mtp_hidden_norm"):
        made[f"model.{norm}.0.weight"] = torch.ones(hidden)
    return {**made, "model.mtp_linear_proj.0.weight": _drawn(hidden, 2 * hidden)}


def _exaone(tensors: "Tensors", config: dict[str, Any]) -> "Tensors":
    """EXAONE's: numbered from 0 behind a prefix of its own."""
    import torch

    hidden = config["hidden_size"]
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    made = _renamed(tensors, f"model.layers.{config['num_hidden_layers']}.", "mtp.layers.0.")
    made |= {f"mtp.{norm}.weight": torch.ones(hidden) for norm in norms}
    return {**made, "mtp.fc.weight": _drawn(hidden, 2 * hidden)}


def _qwen(tensors: "Tensors", config: dict[str, Any]) -> "Tensors":
    """Qwen3-Next's: as EXAONE's, with norms about zero."""
    import torch

    made = _exaone(tensors, config)
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    return {**made, **{f"mtp.{norm}.weight": torch.zeros(config["hidden_size"]) for norm in norms}}


def _drawn(rows: int, columns: int) -> "torch.Tensor":
    import torch

    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(SEED)) * WIDTH


def _renamed(tensors: "Tensors", old: str, new: str) -> "Tensors":
    return {(new + name.removeprefix(old) if name.startswith(old) else name): t for name, t in tensors.items()}


DRAFTING: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "mimo-mtp": Recipe(
            "Qwen2", {"num_hidden_layers": 2, "tie_word_embeddings": False}, defaults=DECODER, rewrite=_drafts(_mimo)
        ),
        "glm4-moe-mtp": Recipe("Glm4Moe", {**_EXPERTS}, defaults=GROUPED, rewrite=_drafts(_deepseek)),
        "ernie-mtp": Recipe(
            "Ernie4_5_Moe",
            {
                "moe_num_experts": 4,
                "moe_k": 2,
                "moe_num_shared_experts": 1,
                "moe_intermediate_size": 64,
                "moe_layer_start_index": 1,
                "moe_layer_interval": 1,
                "moe_layer_end_index": -1,
                "tie_word_embeddings": False,
                "pad_token_id": 0,
            },
            defaults=GROUPED,
            rewrite=_drafts(_ernie),
        ),
        # The drafter's layer attends to everything, in a group with the target's last; the others have windows.
        "exaone-moe-mtp": Recipe(
            "ExaoneMoe",
            {
                "num_hidden_layers": 5,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 2,
                "mlp_layer_types": ["dense"] + ["sparse"] * 3 + ["dense"],
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "num_shared_experts": 1,
                "moe_intermediate_size": 64,
            },
            window=256,
            defaults=GROUPED,
            rewrite=_drafts(_exaone),
        ),
        "qwen3-next-mtp": MODELS["qwen3-next"]._replace(
            changes={
                **MODELS["qwen3-next"].changes,
                "num_hidden_layers": 5,
                "layer_types": ["linear_attention"] * 3 + ["full_attention"] * 2,
            },
            rewrite=_drafts(_qwen),
        ),
        "mla-v3-mtp": Recipe(
            "DeepseekV3",
            {**MLA, "topk_method": "noaux_tc"},
            # Its backend computes prompts whole, and beside a drafter vLLM never schedules one that is longer than a chunk.
            (*MLA_FLAGS, "--max-num-batched-tokens", str(CONTEXT_TOKENS)),
            is_repeatable=False,
            rewrite=_drafts(_deepseek),
        ),
    }
)
