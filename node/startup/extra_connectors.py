"""KV connectors of vLLM beside Baton's: what may stand there, and why all else is refused. Pure.

vLLM's MultiConnector asks its connectors in order. Each rule below is one that it does not know and that Baton's
hand-off rests on; `docs/decisions/0025-composition.md` has the reasons at length.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.contracts.kv_transfer import Role
from baton.node.errors import StartRefusedError
from baton.node.startup.flags import RANK_FLAGS, count_of, given

PROVEN = "OffloadingConnector"
PROVEN_VERSION = "0.32."  # how vLLM's number begins; its connectors change inside from one version to the next
DEVICES = ("cuda",)  # that vLLM can copy KV from, of those that nodes run on
# Decode nodes: the same with a fence that it lacks there.
FENCED_MODULE = "baton.kv_connector.vllm_compat.fenced_offloading"
_SETTINGS = ("cpu_bytes_to_use", "blocks_per_chunk", "eviction_policy", "store_threshold", "offload_prompt_only")

_BY_ITSELF = "the node sets it itself"
_OWN_REFERENCES = "it holds blocks that no request owns, which the node's integrity check would report as lost"
_LOADS_IN_STEP = (
    "it loads KV inside the step that needs it, and where that fails vLLM notices when a decode node may already use it"
)
_HANDS_OVER = "it hands prompts to other nodes, and a prompt is handed over in one way"
_REASONS: Mapping[str, str] = {
    "BatonConnector": _BY_ITSELF,
    "MultiConnector": _BY_ITSELF,
    "MooncakeStoreConnector": _OWN_REFERENCES,
    "SimpleCPUOffloadConnector": _OWN_REFERENCES,
    "ExampleConnector": _LOADS_IN_STEP,
    "LMCacheConnectorV1": _LOADS_IN_STEP,
    "NixlConnector": _HANDS_OVER,
    "NixlPullConnector": _HANDS_OVER,
    "NixlPushConnector": _HANDS_OVER,
    "MooncakeConnector": _HANDS_OVER,
    "MoRIIOConnector": _HANDS_OVER,
}


def refuse_unproven(beside: Sequence[Mapping[str, Any]], flags: Sequence[str], device: str, vllm: str) -> None:
    """Refuse what has not been proven to leave the hand-off whole beside Baton's connector; the sentence says why."""
    if not beside:
        return
    if len(beside) > 1:
        raise StartRefusedError("`beside` may name one connector: several at once have not been proven")
    (entry,) = beside
    _refuse_connector(entry)
    _refuse_settings(entry.get("kv_connector_extra_config"))
    if not vllm.startswith(PROVEN_VERSION):
        raise StartRefusedError(f"{PROVEN} in `beside` is proven with vLLM {PROVEN_VERSION}x, and this is {vllm}")
    if device not in DEVICES:
        raise StartRefusedError(f"{PROVEN} in `beside` needs a CUDA device: vLLM cannot copy KV off a {device} device")
    for names in RANK_FLAGS:
        if count_of(flags, *names) > 1:
            raise StartRefusedError(f"`beside` is proven for nodes of one rank: leave out {names[0]}, or `beside`")
    if given(flags, "--no-enable-prefix-caching"):
        raise StartRefusedError("`beside` needs vLLM's prefix cache: leave out --no-enable-prefix-caching, or `beside`")


def wrap_multi_connector(baton: dict[str, Any], beside: Sequence[Mapping[str, Any]], role: Role) -> dict[str, Any]:
    """Return the value of `--kv-transfer-config`: Baton's connector alone, or in vLLM's MultiConnector.

    On a decode node Baton's comes first: the first connector that has tokens loads, and it alone, so that a single
    block from elsewhere would leave the rest of the prompt to this node. On a prefill node it comes last: a layer is
    handed to the sender when every other connector's hook for it has run (I1).
    """
    if not beside:
        return baton
    fenced = {"kv_connector_module_path": FENCED_MODULE} if role == "decode" else {}
    others = [{**entry, "kv_role": "kv_both", **fenced} for entry in beside]
    known = {**baton.get("kv_connector_extra_config", {}), "has_neighbours": True}
    baton = {**baton, "kv_connector_extra_config": known}
    return {
        "kv_connector": "MultiConnector",
        # Blocks are loaded here on either kind of node, so vLLM must not give any away that a step may still write to.
        "kv_role": "kv_both",
        "kv_load_failure_policy": baton["kv_load_failure_policy"],
        "kv_connector_extra_config": {"connectors": [baton, *others] if role == "decode" else [*others, baton]},
    }


def _refuse_connector(entry: Mapping[str, Any]) -> None:
    name = entry.get("kv_connector")
    if not isinstance(name, str) or not name:
        raise StartRefusedError("an entry of `beside` must name its `kv_connector`")
    if name != PROVEN:
        reason = _REASONS.get(name, "it has not been proven to leave the hand-off whole")
        raise StartRefusedError(f"{name} cannot stand in `beside`: {reason}; {PROVEN} can")
    if unknown := set(entry) - {"kv_connector", "kv_connector_extra_config"}:
        raise StartRefusedError(f"`beside` takes kv_connector and kv_connector_extra_config, not {_listed(unknown)}")


def _refuse_settings(settings: object) -> None:
    if not isinstance(settings, Mapping):
        raise StartRefusedError(f"{PROVEN} in `beside` needs kv_connector_extra_config with cpu_bytes_to_use")
    if unknown := set(settings) - set(_SETTINGS):
        raise StartRefusedError(
            f"{PROVEN} in `beside` has not been proven with {_listed(unknown)}, only with {', '.join(_SETTINGS)}"
        )
    size = settings.get("cpu_bytes_to_use")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise StartRefusedError(f"cpu_bytes_to_use in `beside` must be a whole number of bytes, not {size!r}")


def _listed(names: set[Any]) -> str:
    return ", ".join(sorted(map(str, names)))
