"""Tiny models with recurrent layers, beside those in `models.py`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tests.matrix.models import GROUPED, Recipe

RECURRENT_MODELS: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        # Layers of one kind each: Mamba2, an MLP, attention. Its states are float32 in any case.
        "nemotron-h": Recipe(
            "NemotronH",
            {
                "layers_block_type": ["mamba", "mlp", "attention", "mamba"],
                "mamba_num_heads": 8,
                "mamba_head_dim": 32,
                "ssm_state_size": 64,
                "n_groups": 2,
                "chunk_size": 64,
                "use_mamba_kernels": False,
                "pad_token_id": 0,
            },
            has_states=True,
            defaults={name: value for name, value in GROUPED.items() if name != "num_hidden_layers"},
            flags=("--no-enable-prefix-caching",),
            block_tokens=256,
        ),
    }
)
