"""Speculative decoding: which methods the hand-off covers, and which layers are the drafter's.

The target's tokens do not depend on what a drafter proposes: each is verified. So the KV of its layers travels only
where it does no harm: at the end of the step (passes of the drafter write it again and again), to a peer with the same
drafter, counted for no commit and compared by no digest. Other peers exchange the target's layers.
"""

import hashlib
import json
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat.node_role import role_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

WITHOUT_LAYERS = ("ngram", "ngram_gpu", "suffix", "medusa")  # they draft from the tokens, or the target's last state
WITH_LAYERS = ("draft_model", "eagle", "eagle3", "mtp")
BESIDE_STATES = ("ngram", "ngram_gpu", "suffix", "mtp")  # of recurrent layers
_DRAFT_MODEL = "draft_model."  # what vLLM's `DraftModelProposer` puts before the names of its layers
_MTP = "mtp"  # a part of the name of the drafter's layers, where vLLM numbers them from 0
_SHARING = ("gemma4_mtp",)  # drafters that read the target's KV and keep none


def objection(vllm_config: "VllmConfig") -> str:
    """Return why this engine's speculative decoding is not covered; "" if it is, or if there is none."""
    settings = vllm_config.speculative_config
    if settings is None:
        return ""
    role = role_of(vllm_config.kv_transfer_config)
    if role == "prefill" and vllm_config.parallel_config.pipeline_parallel_size > 1:
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
    return _mtp_objection(vllm_config) if settings.method == "mtp" else ""


def check_draft_layers(vllm_config: "VllmConfig", names: Collection[str]) -> None:
    """Check that the drafter's layers have been told apart from the target's: a drafter's count for no commit (I4).

    vLLM builds the target first, so that the drafter's layers are the last that it registers. `names`: of the layers
    with KV. Raises `ConnectorConfigError` if vLLM names this drafter's layers in another way.
    """
    settings = vllm_config.speculative_config
    if settings is None or settings.method != "mtp":
        return
    registered = [name for name in vllm_config.compilation_config.static_forward_context if name in names]
    found = draft_layers(vllm_config, names)
    numbered = {_number(name) for name in found if not _has_prefix(name)}
    modules = int(getattr(settings.draft_model_config.hf_config, "num_nextn_predict_layers", None) or 1)
    most = 0 if any(map(_has_prefix, found)) else modules
    if not found or found != set(registered[-len(found) :]) or len(numbered) > most:
        raise ConnectorConfigError(
            f"which layers are the drafter's cannot be told from their names ({', '.join(registered[-2:])} are the last): "
            "start this node without speculative decoding, or use 'ngram'"
        )


def draft_layers(vllm_config: "VllmConfig", names: Iterable[str]) -> frozenset[str]:
    """Return which of vLLM's layer names are the drafter's.

    vLLM numbers those of an EAGLE head, and of most MTP drafters, behind the target's; others begin as `mtp.layers.0`.
    """
    settings = vllm_config.speculative_config
    if settings is None or settings.method not in WITH_LAYERS:
        return frozenset()
    if settings.method == "draft_model":
        return frozenset(name for name in names if name.startswith(_DRAFT_MODEL))
    first = vllm_config.model_config.get_num_layers(vllm_config.parallel_config)  # of all: there are no stages
    is_mtp = settings.method == "mtp"
    return frozenset(name for name in names if _number(name) >= first or (is_mtp and _has_prefix(name)))


def drafter_digest(vllm_config: "VllmConfig") -> str:
    """Return a name of the drafter: equal where its KV may be exchanged. What is wrong in it costs speed, never a token."""
    settings = vllm_config.speculative_config
    if settings is None or settings.method not in WITH_LAYERS:
        return ""
    model = settings.draft_model_config
    text = json.dumps([settings.method, model.hf_config.to_dict(), str(model.dtype)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _mtp_objection(vllm_config: "VllmConfig") -> str:
    settings: Any = vllm_config.speculative_config
    lookahead = getattr(vllm_config, "num_prefill_lookahead_tokens", None)
    if lookahead is None:  # it came with vLLM 0.31
        return "MTP drafters are handed over with vLLM 0.31 or newer: use 'ngram'"
    if lookahead > 1:
        return (
            f"an MTP drafter of several modules ({lookahead} are used) reads the end of the prompt again in each of them, which "
            "is not covered by the hand-off: set num_speculative_tokens to 1"
        )
    model = getattr(settings.draft_model_config.hf_config, "model_type", "")
    if model in _SHARING:
        return f"a drafter of kind {model!r}, which reads the target's KV, has not been tried: use 'ngram'"
    return ""


def _has_prefix(name: str) -> bool:
    return _MTP in name.split(".")


def _number(name: str) -> int:
    """The layer's number; -1 without one."""
    return max((int(part) for part in name.split(".") if part.isdecimal()), default=-1)
