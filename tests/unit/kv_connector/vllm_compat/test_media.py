"""How an engine reads images and sound."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.vllm_compat import media
from baton.kv_connector.vllm_compat.media import media_digest, media_of
from baton.kv_connector.vllm_compat.sampling_digest import sampling_digest


def config(model: Path, *, caches_prefixes: bool = True, **media: Any) -> Any:
    """A configuration of vLLM's, as far as it is looked at."""
    said = SimpleNamespace(**{"mm_processor_cache_gb": 4, **media})
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), multimodal_config=said, get_diff_sampling_param=dict),
        cache_config=SimpleNamespace(enable_prefix_caching=caches_prefixes),
    )


def test_nodes_with_other_settings_or_processor_files_differ(tmp_path: Path) -> None:
    """Names of items say nothing of these; a setting that is empty is one that is not given."""
    plain = media_digest(config(tmp_path))

    assert plain == media_digest(config(tmp_path, mm_processor_kwargs=None, media_io_kwargs={}))
    assert plain != media_digest(config(tmp_path, mm_processor_kwargs={"max_pixels": 9}))
    assert plain == media_digest(config(tmp_path / "elsewhere")), "where the same model lies does not count"
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert plain != media_digest(config(tmp_path))


def test_first_tokens_come_only_from_nodes_that_read_media_alike(tmp_path: Path) -> None:
    """A decode node that sees another prompt computes it by itself, and must not go on with another prompt's token."""
    assert sampling_digest(config(tmp_path)) != sampling_digest(config(tmp_path, media_io_kwargs={"image": {"a": 1}}))


@pytest.mark.parametrize(
    ("changed", "keeps_media", "why"),
    [
        ({}, True, ""),
        ({}, False, media.SCHEDULER),
        ({"video_pruning_rate": 0.5}, True, media.PRUNING),
        ({"video_pruning_rate": 0.0}, True, ""),
        ({"mm_processor_cache_gb": 0}, True, ""),
        ({"caches_prefixes": False}, True, ""),
        ({"caches_prefixes": False, "mm_processor_cache_gb": 0}, True, media.UNNAMED),
    ],
)
def test_an_engine_says_why_its_prompts_are_not_handed_over(
    tmp_path: Path, changed: dict[str, Any], keeps_media: bool, why: str
) -> None:
    """A preemption would end it, or a decode node would need the encoder."""
    assert media_of(config(tmp_path, **changed), keeps_media=keeps_media).objection == why


def test_images_that_attend_in_both_directions_stay_on_one_node(tmp_path: Path) -> None:
    """They have not been tried."""
    looked_at = config(tmp_path)
    looked_at.model_config.is_mm_prefix_lm = True

    assert media_of(looked_at, keeps_media=True).objection == media.BIDIRECTIONAL


def test_a_model_without_media_has_nothing_to_say() -> None:
    text: Any = SimpleNamespace(model_config=SimpleNamespace(model="m"))

    assert media_of(text, keeps_media=False) == media.NO_MEDIA == (b"", "")
