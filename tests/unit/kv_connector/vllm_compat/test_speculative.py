"""Which speculative decoding is covered, and which layers are the drafter's."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.vllm_compat.speculative import draft_layers, drafter_digest, objection

TARGET = [f"model.layers.{i}.self_attn.attn" for i in range(4)]


def engine(method: str | None, *, stages: int = 1, drafter: str = "a drafter", prefill: bool = False) -> Any:
    """What we read of an engine with four layers and this method."""
    config = SimpleNamespace(to_dict=lambda: {"name": drafter})
    speculative = SimpleNamespace(method=method, draft_model_config=SimpleNamespace(hf_config=config, dtype="float32"))
    return SimpleNamespace(
        speculative_config=speculative if method else None,
        kv_transfer_config=SimpleNamespace(is_kv_producer=prefill),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        model_config=SimpleNamespace(get_num_layers=lambda parallel: 4 if parallel.pipeline_parallel_size == 1 else 2),
    )


@pytest.mark.parametrize("method", [None, "ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3"])
def test_these_methods_are_covered(method: str | None) -> None:
    """Drafts are verified, whoever makes them."""
    assert objection(engine(method)) == ""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (engine("mtp"), "method 'mtp' is not covered by the hand-off: use one of ngram, "),
        (engine("medusa"), "method 'medusa' is not covered"),
        (engine("ngram", stages=2, prefill=True), "on a prefill node of several pipeline stages is not covered"),
        (engine("eagle", stages=2), "a drafter of method 'eagle' beside pipeline stages is not covered"),
    ],
)
def test_other_methods_are_refused_by_name(config: Any, words: str) -> None:
    """The message says what is not covered, and what is."""
    assert words in objection(config)


def test_ngrams_may_stand_beside_pipeline_stages() -> None:
    """On a decode node: they have no layers that a stage could hold."""
    assert objection(engine("ngram", stages=2)) == ""
    assert objection(engine("ngram", prefill=True)) == ""


def test_the_drafters_layers_are_told_apart() -> None:
    """A draft model's by their prefix, an EAGLE head's by numbers behind the target's; other methods have none."""
    drafted, headed = "draft_model.model.layers.0.self_attn.attn", "model.layers.4.self_attn.attn"

    assert draft_layers(engine("draft_model"), [*TARGET, drafted]) == {drafted}
    assert draft_layers(engine("eagle"), [*TARGET, headed]) == {headed}
    assert draft_layers(engine("ngram"), TARGET) == draft_layers(engine(None), TARGET) == frozenset()


def test_drafters_are_named_by_what_they_are() -> None:
    """Two nodes exchange a drafter's KV only if it is the same."""
    names = {drafter_digest(engine(method, drafter=name)) for method in ("draft_model", "eagle") for name in ("a", "b")}

    assert len(names) == 4
    assert drafter_digest(engine("eagle", drafter="a")) == drafter_digest(engine("eagle", drafter="a")) != ""
    assert drafter_digest(engine("ngram")) == drafter_digest(engine(None)) == ""
