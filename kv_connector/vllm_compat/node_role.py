"""The role of this engine's node, whatever vLLM's own word for it is: of a node that sends and receives, or has other connectors, that is `kv_both`."""

from typing import TYPE_CHECKING

from baton.contracts.kv_transfer import Role

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig


def role_of(transfer: "KVTransferConfig") -> Role:
    """Return what the node has said in our connector's settings, which may stand beside others' in a `MultiConnector`; else what vLLM's word is."""
    extra = transfer.kv_connector_extra_config
    children = (child.get("kv_connector_extra_config", {}) for child in extra.get("connectors", ()))
    said: list[Role] = [settings["role"] for settings in (extra, *children) if "role" in settings]
    return said[0] if said else "prefill" if transfer.is_kv_producer else "decode"
