"""Which speculative decoding is covered, and which layers are the drafter's."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat.speculative import check_draft_layers, draft_layers, drafter_digest, objection

TARGET = [f"model.layers.{i}.self_attn.attn" for i in range(4)]


def engine(
    method: str | None,
    *,
    stages: int = 1,
    drafter: str = "a drafter",
    prefill: bool = False,
    kind: str = "",
    layers: Sequence[str] = (),
    modules: int | None = None,
    **younger: Any,
) -> Any:
    """What we read of an engine with four layers and this method; `younger` are fields of younger versions."""
    config = SimpleNamespace(to_dict=lambda: {"name": drafter}, model_type=kind, num_nextn_predict_layers=modules)
    speculative = SimpleNamespace(method=method, draft_model_config=SimpleNamespace(hf_config=config, dtype="float32"))
    return SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context=dict.fromkeys(layers)),
        speculative_config=speculative if method else None,
        kv_transfer_config=SimpleNamespace(is_kv_producer=prefill, kv_connector_extra_config={}),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        model_config=SimpleNamespace(get_num_layers=lambda parallel: 4 if parallel.pipeline_parallel_size == 1 else 2),
        **younger,
    )


METHODS = [None, "ngram", "ngram_gpu", "suffix", "medusa", "draft_model", "eagle", "eagle3"]


@pytest.mark.parametrize(
    "config",
    [
        *map(engine, METHODS),
        engine("mtp", num_prefill_lookahead_tokens=1),  # of one module: it reads the next token alone
        engine("ngram", stages=2),  # on a decode node: it has no layers that a stage could hold
        engine("ngram", prefill=True),
    ],
)
def test_these_methods_are_covered(config: Any) -> None:
    """Drafts are verified, whichever method makes them."""
    assert objection(config) == ""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (engine("dflash"), "method 'dflash' is not covered by the hand-off: use one of ngram, "),
        (engine("mtp"), "MTP drafters are handed over with vLLM 0.31 or newer"),
        (engine("mtp", num_prefill_lookahead_tokens=2), r"an MTP drafter of several modules (2 are used)"),
        (
            engine("mtp", num_prefill_lookahead_tokens=1, kind="gemma4_mtp"),
            "a drafter of kind 'gemma4_mtp', which reads the target's KV, has not been tried",
        ),
        (engine("mtp", num_prefill_lookahead_tokens=1, stages=2), "method 'mtp' beside pipeline stages is not covered"),
        (engine("mlp_speculator"), "method 'mlp_speculator' is not covered"),
        (engine("ngram", stages=2, prefill=True), "on a prefill node of several pipeline stages is not covered"),
        (engine("eagle", stages=2), "a drafter of method 'eagle' beside pipeline stages is not covered"),
    ],
)
def test_other_methods_are_refused_by_name(config: Any, words: str) -> None:
    """The message says what is not covered, and what is."""
    assert words in objection(config)


def test_the_drafters_layers_are_told_apart() -> None:
    """A draft model's by their prefix, an EAGLE head's by numbers behind the target's; other methods have none. Only MTP's are checked."""
    drafted, headed = "draft_model.model.layers.0.self_attn.attn", "model.layers.4.self_attn.attn"

    assert draft_layers(engine("draft_model"), [*TARGET, drafted]) == {drafted}
    assert draft_layers(engine("eagle"), [*TARGET, headed]) == {headed}
    assert draft_layers(engine("ngram"), TARGET) == draft_layers(engine(None), TARGET) == frozenset()
    for method in ("eagle", None):
        check_draft_layers(engine(method), TARGET)


MTP_LAYERS = {
    "numbered behind the target's": "model.layers.4.self_attn.attn",
    "numbered from 0": "mtp.layers.0.self_attn.attn",
    "numbered from 0 inside the model": "model.mtp.layers.0.self_attn.attn",
}


@pytest.mark.parametrize("drafted", MTP_LAYERS.values(), ids=MTP_LAYERS)
def test_an_mtp_drafters_layers_are_told_apart(drafted: str) -> None:
    """By their numbers or by their prefix; vLLM has registered them last."""
    config = engine("mtp", layers=[*TARGET, "model.layers.4.mlp.experts", drafted])

    assert draft_layers(config, [drafted, *TARGET]) == {drafted}
    check_draft_layers(config, [drafted, *TARGET])


STRANGE = {
    "named as the target's": ("drafter.layers.0.self_attn.attn",),
    "before one of the target's": ("model.layers.4.self_attn.attn", "head.attn"),
    "behind a layer of the target's with a high number": (
        "model.layers.4.self_attn.attn",
        "mtp.layers.0.self_attn.attn",
    ),
    "more than it has": ("model.layers.4.self_attn.attn", "model.layers.5.self_attn.attn"),
}


@pytest.mark.parametrize("drafted", STRANGE.values(), ids=STRANGE)
def test_an_mtp_drafter_with_strange_names_is_refused(drafted: Sequence[str]) -> None:
    """A layer of the target that is taken for the drafter's would be missing from what a commit covers."""
    with pytest.raises(ConnectorConfigError, match="which layers are the drafter's cannot be told"):
        check_draft_layers(engine("mtp", layers=[*TARGET, *drafted], modules=1), [*TARGET, *drafted])


def test_drafters_are_named_by_what_they_are() -> None:
    """Two nodes exchange a drafter's KV only if it is the same."""
    names = {drafter_digest(engine(method, drafter=name)) for method in ("draft_model", "eagle") for name in ("a", "b")}

    assert len(names) == 4
    assert drafter_digest(engine("eagle", drafter="a")) == drafter_digest(engine("eagle", drafter="a")) != ""
    assert drafter_digest(engine("ngram")) == drafter_digest(engine(None)) == ""
