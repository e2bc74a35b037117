"""How an engine reads images and sound."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from baton.kv_connector.vllm_compat.media import media_digest, media_identity
from baton.kv_connector.vllm_compat.sampling_digest import sampling_digest


def config(model: Path, **media: Any) -> Any:
    """A configuration of vLLM's, as far as it is looked at."""
    said = SimpleNamespace(**media)
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), multimodal_config=said, get_diff_sampling_param=dict)
    )


def test_nodes_with_other_settings_or_processor_files_differ(tmp_path: Path) -> None:
    """Names of items say nothing of these; a setting that is empty is one that is not given."""
    plain = media_digest(config(tmp_path))

    assert plain == media_digest(config(tmp_path, mm_processor_kwargs=None, media_io_kwargs={}))
    assert plain != media_digest(config(tmp_path, mm_processor_kwargs={"max_pixels": 9}))
    assert plain != media_digest(config(tmp_path / "elsewhere"))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert plain != media_digest(config(tmp_path))


def test_first_tokens_come_only_from_nodes_that_read_media_alike(tmp_path: Path) -> None:
    """A decode node that sees another prompt computes it by itself, and must not go on with another prompt's token."""
    assert sampling_digest(config(tmp_path)) != sampling_digest(config(tmp_path, media_io_kwargs={"image": {"a": 1}}))


def test_an_engine_that_cannot_take_part_is_like_no_other(tmp_path: Path) -> None:
    """Its prompts with media match none; a model without media has nothing to be told apart by."""
    alike, pruning = config(tmp_path), config(tmp_path, video_pruning_rate=0.5)

    assert media_identity(alike, keeps_media=True) == media_identity(alike, keeps_media=True) == media_digest(alike)
    assert media_identity(alike, keeps_media=False) != media_identity(alike, keeps_media=False)
    assert media_identity(pruning, keeps_media=True) != media_identity(pruning, keeps_media=True)
    assert media_digest(pruning) == media_digest(pruning)
    text: Any = SimpleNamespace(model_config=SimpleNamespace(model="m"))
    assert media_identity(text, keeps_media=False) == b""
