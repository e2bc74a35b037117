"""Tiny models with random weights that take images or sound: weights, a tokenizer with their markers, and processor files.

The last projection of each encoder is scaled up, so that another image or sound gives other tokens: a weak one would prove nothing.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from baton.deploy.embedded_model import tokenizer as tokens
from tests.matrix.models import CACHE, CONTEXT_TOKENS, DECODER, RECIPE, SEED

_QWEN_MARKERS: Final = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_FIRST: Final = tokens.VOCABULARY_SIZE  # id of a model's first marker
_TEXT: Final[Mapping[str, Any]] = MappingProxyType({**DECODER, "vocab_size": _FIRST + 64, "pad_token_id": 0})
_ROPE: Final[Mapping[str, Any]] = MappingProxyType(
    {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
)
_QWEN_IDS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "vision_start_token_id": _FIRST,
        "vision_end_token_id": _FIRST + 1,
        "image_token_id": _FIRST + 2,
        "video_token_id": _FIRST + 3,
    }
)
_PIXELS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "resample": 3,
    }
)


class MediaRecipe(NamedTuple):
    """Two classes of transformers', their settings, and the files of a processor."""

    family: str  # of `<family>Config` and `<family>ForConditionalGeneration`
    settings: Mapping[str, Any]
    markers: Sequence[str]  # tokens beside those of text
    preprocessor: Mapping[str, Any]
    projections: Sequence[str]  # ends of weights' names
    gain: float  # of those
    processor: Mapping[str, Any] = MappingProxyType({})
    renamed: Sequence[
        tuple[str, str]
    ] = ()  # beginnings of weights' names: what transformers writes, and checkpoints have
    modality: str = "image"
    flags: Sequence[str] = ()
    # vLLM gives the same tokens for a prompt alone and among others; else digests alone are compared.
    is_repeatable: bool = True


def _qwen_pixels(patch: int) -> Mapping[str, Any]:
    return {
        **_PIXELS,
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 56 * 56,
        "max_pixels": 28 * 28 * 64,
        "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64},
    }


MEDIA_MODELS: Final[Mapping[str, MediaRecipe]] = MappingProxyType(
    {
        "llava": MediaRecipe(
            "Llava",
            {
                "text_config": {**_TEXT, "model_type": "llama"},
                "image_token_index": _FIRST,
                "image_token_id": _FIRST,
                "vision_feature_layer": -2,
                "vision_feature_select_strategy": "default",
                "vision_config": {
                    "model_type": "clip_vision_model",
                    "hidden_size": 64,
                    "intermediate_size": 128,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 2,
                    "image_size": 112,
                    "patch_size": 14,
                    "projection_dim": 64,
                },
            },
            ("<image>",),
            {
                **_PIXELS,
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 112},
                "crop_size": {"height": 112, "width": 112},
                "do_center_crop": True,
                "processor_class": "LlavaProcessor",
            },
            projections=("multi_modal_projector.linear_2.weight",),
            gain=4.0,
            processor={
                "processor_class": "LlavaProcessor",
                "patch_size": 14,
                "vision_feature_select_strategy": "default",
                "image_token": "<image>",
                "num_additional_image_tokens": 1,
            },
            renamed=(("vision_tower.", "vision_tower.vision_model."),),
        ),
        "qwen2-vl": MediaRecipe(
            "Qwen2VL",
            {
                **_QWEN_IDS,
                "text_config": {**_TEXT, "rope_parameters": dict(_ROPE)},
                "vision_config": {
                    "depth": 2,
                    "embed_dim": 64,
                    "hidden_size": 128,
                    "num_heads": 2,
                    "mlp_ratio": 2,
                    "patch_size": 14,
                },
            },
            _QWEN_MARKERS,
            {**_qwen_pixels(14), "processor_class": "Qwen2VLProcessor"},
            projections=("visual.merger.mlp.2.weight",),
            gain=40.0,
            flags=("--limit-mm-per-prompt", '{"video": 0}'),
        ),
        "qwen2.5-vl": MediaRecipe(
            "Qwen2_5_VL",
            {
                **_QWEN_IDS,
                "text_config": {**_TEXT, "rope_parameters": dict(_ROPE)},
                "vision_config": {
                    "depth": 2,
                    "hidden_size": 64,
                    "out_hidden_size": 128,
                    "num_heads": 2,
                    "intermediate_size": 128,
                    "patch_size": 14,
                    "window_size": 112,
                    "fullatt_block_indexes": [1],
                },
            },
            _QWEN_MARKERS,
            {**_qwen_pixels(14), "processor_class": "Qwen2_5_VLProcessor"},
            projections=("visual.merger.mlp.2.weight",),
            gain=40.0,
            flags=("--limit-mm-per-prompt", '{"video": 0}'),
        ),
        # Its encoder also adds to the input of the first layers of the decoder.
        "qwen3-vl": MediaRecipe(
            "Qwen3VL",
            {
                **_QWEN_IDS,
                "text_config": {**_TEXT, "head_dim": 32, "rope_parameters": {**_ROPE, "mrope_interleaved": True}},
                "vision_config": {
                    "depth": 2,
                    "hidden_size": 64,
                    "out_hidden_size": 128,
                    "num_heads": 2,
                    "intermediate_size": 128,
                    "patch_size": 16,
                    "deepstack_visual_indexes": [0],
                    "num_position_embeddings": 256,
                },
            },
            _QWEN_MARKERS,
            {**_qwen_pixels(16), "processor_class": "Qwen3VLProcessor"},
            projections=("merger.linear_fc2.weight", "merger_list.0.linear_fc2.weight"),
            gain=40.0,
            flags=("--limit-mm-per-prompt", '{"video": 0}'),
        ),
        # Recurrent layers beside attention: the decode node computes the prompt's last token.
        "qwen3.5-vl": MediaRecipe(
            "Qwen3_5",
            {
                **_QWEN_IDS,
                "text_config": {
                    **_TEXT,
                    "head_dim": 128,
                    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                    "linear_num_key_heads": 1,
                    "linear_num_value_heads": 2,
                    "linear_key_head_dim": 128,  # vLLM's kernels know no other
                    "linear_value_head_dim": 128,
                    "rope_parameters": {
                        **_ROPE,
                        "mrope_section": [22, 21, 21],
                        "mrope_interleaved": True,
                        "partial_rotary_factor": 1.0,
                    },
                },
                "vision_config": {
                    "depth": 2,
                    "hidden_size": 64,
                    "out_hidden_size": 128,
                    "num_heads": 2,
                    "intermediate_size": 128,
                    "patch_size": 16,
                    "num_position_embeddings": 256,
                },
            },
            _QWEN_MARKERS,
            {**_qwen_pixels(16), "processor_class": "Qwen3VLProcessor"},
            projections=("merger.linear_fc2.weight",),
            gain=40.0,
            flags=("--limit-mm-per-prompt", '{"video": 0}', "--no-enable-prefix-caching", "--dtype", "bfloat16"),
            is_repeatable=False,
        ),
        "qwen2-audio": MediaRecipe(
            "Qwen2Audio",
            {
                "text_config": {**_TEXT, "model_type": "qwen2"},
                "audio_token_index": _FIRST,
                "audio_config": {
                    "model_type": "qwen2_audio_encoder",
                    "d_model": 64,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 2,
                    "encoder_ffn_dim": 128,
                    "num_mel_bins": 80,
                    "max_source_positions": 1500,
                },
            },
            ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
            {
                "feature_extractor_type": "WhisperFeatureExtractor",
                "feature_size": 80,
                "sampling_rate": 16000,
                "hop_length": 160,
                "chunk_length": 30,
                "n_fft": 400,
                "padding_value": 0.0,
                "return_attention_mask": True,
                "padding_side": "right",
                "processor_class": "Qwen2AudioProcessor",
            },
            projections=("multi_modal_projector.linear.weight",),
            gain=4.0,
            renamed=(("language_model.model.model.", "language_model.model."),),
            modality="audio",
        ),
    }
)


def ensure(name: str, folder: Path = CACHE) -> Path:
    """Return where a model lies, and write it unless it is there: built beside its place and moved there whole."""
    made_of, place = MEDIA_MODELS[name], folder / f"media-{name}"
    recipe = json.dumps({"seed": SEED, **made_of._asdict()}, indent=2, default=dict) + "\n"
    if (place / RECIPE).is_file() and (place / RECIPE).read_text() == recipe:
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".media-{name}-") as partial:
        made = Path(partial) / name
        _write(made, made_of)
        (made / RECIPE).write_text(recipe)
        shutil.rmtree(place, ignore_errors=True)  # of another recipe, or half a one
        made.replace(place)
    return place


def _write(folder: Path, made_of: MediaRecipe) -> None:
    import torch  # these take seconds to import, and a model that is there needs none
    import transformers
    from safetensors.torch import load_file, save_file

    torch.manual_seed(SEED)
    config = getattr(transformers, f"{made_of.family}Config")(**made_of.settings)
    model = getattr(transformers, f"{made_of.family}ForConditionalGeneration")(config)
    model.float().save_pretrained(folder)
    weights = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        known_as = next((new + name[len(old) :] for old, new in made_of.renamed if name.startswith(old)), name)
        gain = made_of.gain if name.endswith(tuple(made_of.projections)) else 1.0
        weights[known_as] = (tensor * gain).contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _write_tokenizer(folder, made_of)
    (folder / "preprocessor_config.json").write_text(json.dumps(dict(made_of.preprocessor), indent=2))
    if made_of.processor:
        (folder / "processor_config.json").write_text(json.dumps(dict(made_of.processor), indent=2))


def _write_tokenizer(folder: Path, made_of: MediaRecipe) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokens.load().to_str())  # a copy: the markers are this model's
    tokenizer.add_special_tokens(list(made_of.markers))
    assert tokenizer.token_to_id(made_of.markers[0]) == _FIRST, "the settings name the markers by their ids"
    tokens.write(tokenizer, folder, CONTEXT_TOKENS)
