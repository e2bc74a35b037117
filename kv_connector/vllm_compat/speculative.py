"""Speculative decoding: which methods the hand-off covers, and which layers are the drafter's.

The target's tokens do not depend on what a drafter proposes: each is verified. So the KV of its layers travels only where
it does no harm: at the end of the step (passes of the drafter write it again and again), to a peer with the same
drafter, counted for no commit and compared by no digest. A peer without the drafter gets, and gives, the target's layers.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

WITHOUT_LAYERS = ("ngram", "ngram_gpu", "suffix")  # they draft from the tokens
WITH_LAYERS = ("draft_model", "eagle", "eagle3")
_DRAFT_MODEL = "draft_model."  # what vLLM's `DraftModelProposer` puts before the names of its layers


def objection(vllm_config: "VllmConfig") -> str:
    """Return why this engine's speculative decoding is not covered; "" if it is, or if there is none."""
    settings = vllm_config.speculative_config
    if settings is None:
        return ""
    if vllm_config.kv_transfer_config.is_kv_producer and vllm_config.parallel_config.pipeline_parallel_size > 1:
        # vLLM then calls `wait_for_save` in the last stage alone: the others would never hand over all of their layers
        return "speculative decoding on a prefill node of several pipeline stages is not covered: give it to the decode node"
    if settings.method in WITHOUT_LAYERS:
        return ""
    if settings.method not in WITH_LAYERS:
        return (
            f"speculative decoding with method {settings.method!r} is not covered by the hand-off: "
            f"use one of {', '.join((*WITHOUT_LAYERS, *WITH_LAYERS))}"
        )
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return f"a drafter of method {settings.method!r} beside pipeline stages is not covered by the hand-off"
    return ""


def draft_layers(vllm_config: "VllmConfig", names: Iterable[str]) -> frozenset[str]:
    """Return which of vLLM's layer names are the drafter's: vLLM numbers an EAGLE head's behind the target's."""
    settings = vllm_config.speculative_config
    if settings is None or settings.method not in WITH_LAYERS:
        return frozenset()
    if settings.method == "draft_model":
        return frozenset(name for name in names if name.startswith(_DRAFT_MODEL))
    first = vllm_config.model_config.get_num_layers(vllm_config.parallel_config)  # of all: there are no stages
    return frozenset(name for name in names if _number(name) >= first)


def drafter_digest(vllm_config: "VllmConfig") -> str:
    """Return a name of the drafter: equal where its KV may be exchanged. What is wrong in it costs speed, never a token."""
    settings = vllm_config.speculative_config
    if settings is None or settings.method not in WITH_LAYERS:
        return ""
    model = settings.draft_model_config
    text = json.dumps([settings.method, model.hf_config.to_dict(), str(model.dtype)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _number(name: str) -> int:
    """The layer's number; -1 without one."""
    return max((int(part) for part in name.split(".") if part.isdecimal()), default=-1)
