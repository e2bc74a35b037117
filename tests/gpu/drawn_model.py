"""A model without a checkpoint: its shape, and weights that a plugin of vLLM draws by a seed in each process."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from baton.deploy.embedded_model import WEIGHTS

# Layers of Qwen3-8B's shapes, 24 of them: 9 GB in bfloat16, 96 KiB of KV for a token.
LARGE: Final[Mapping[str, Any]] = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
SMALL: Final[Mapping[str, Any]] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
}
VOCABULARY: Final = 1024


def register_weights() -> None:
    """Draw wide weights where vLLM draws its tiny ones: a plugin of vLLM, loaded in each of its processes."""
    import torch
    from vllm.model_executor.model_loader import dummy_loader

    drawn = 0

    def draw(tensor: Any) -> None:
        nonlocal drawn
        if not torch.is_floating_point(tensor):
            return
        drawn += 1
        if tensor.dim() < 2:
            tensor.data.fill_(1.0)
            return
        generator = torch.Generator(device=tensor.device).manual_seed(drawn)
        tensor.data.normal_(0, 1.1 / tensor.shape[-1] ** 0.5, generator=generator)

    dummy_loader.initialize_single_dummy_weight = draw


def write_model(folder: Path, shape: Mapping[str, Any], dtype: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(WEIGHTS / name, folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "dtype": dtype,
        **shape,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_plugin(folder: Path) -> Path:
    """Write what lets vLLM find `register_weights`: an installed package's metadata, in a folder for PYTHONPATH."""
    info = folder / "baton_gpu_weights-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: baton-gpu-weights\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nweights = tests.gpu.drawn_model:register_weights\n")
    return folder
