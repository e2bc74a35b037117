"""Draft heads for the embedded model, with random weights: they draft badly. EAGLE's have a layer, whose KV has its place."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from baton.deploy.embedded_model import WEIGHTS

_SAME = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "rope_parameters",
    "rms_norm_eps",
    "hidden_act",
)
_MEDUSA_HEADS = 3
_AUX_STATES = 3  # of the target's layers, that an EAGLE-3 head reads


def write_head(method: str, folder: Path) -> str:
    """Write a head for `eagle`, `eagle3` or `medusa`; returns where it is."""
    target = json.loads((WEIGHTS / "config.json").read_text())
    shapes = {"eagle": _eagle, "eagle3": _eagle3, "medusa": _medusa}[method](target)
    draw = torch.Generator().manual_seed(5)
    folder.mkdir(exist_ok=True)
    tensors = {f"{name}.weight": torch.randn(*shape, generator=draw) * 0.1 for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {name: target[name] for name in _SAME}
    settings |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    if method == "medusa":
        settings = {name: target[name] for name in ("hidden_size", "vocab_size")}
        settings |= {"architectures": ["MedusaModel"], "model_type": "medusa", "num_hidden_layers": 1}
        settings |= {"medusa_num_heads": _MEDUSA_HEADS}
    (folder / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": False, "dtype": "float32"}))
    return str(folder)


def _layer(target: Mapping[str, Any], name: str, width: int) -> dict[str, tuple[int, ...]]:
    """One layer's weights, whose attention reads states of this width."""
    hidden, mlp = target["hidden_size"], target["intermediate_size"]
    keys = hidden * target["num_key_value_heads"] // target["num_attention_heads"]
    return {
        f"{name}.self_attn.q_proj": (hidden, width),
        f"{name}.self_attn.k_proj": (keys, width),
        f"{name}.self_attn.v_proj": (keys, width),
        f"{name}.self_attn.o_proj": (hidden, hidden),
        f"{name}.mlp.gate_proj": (mlp, hidden),
        f"{name}.mlp.up_proj": (mlp, hidden),
        f"{name}.mlp.down_proj": (hidden, mlp),
        f"{name}.post_attention_layernorm": (hidden,),
    }


def _eagle(target: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden = target["hidden_size"]
    return {"fc": (hidden, 2 * hidden), **_layer(target, "layers.0", hidden)}


def _eagle3(target: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden = target["hidden_size"]
    return {
        "fc": (hidden, _AUX_STATES * hidden),
        **_layer(target, "midlayer", 2 * hidden),  # of the token's embedding and the target's states, side by side
        "midlayer.hidden_norm": (hidden,),
        "midlayer.input_layernorm": (hidden,),
        "norm": (hidden,),
        "lm_head": (target["vocab_size"], hidden),
    }


def _medusa(target: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """A block and a head for each token that it drafts; no attention."""
    hidden = target["hidden_size"]
    blocks = {f"blocks.{head}.layers.0": (hidden, hidden) for head in range(_MEDUSA_HEADS)}
    return blocks | {f"lm_heads.{head}": (target["vocab_size"], hidden) for head in range(_MEDUSA_HEADS)}
