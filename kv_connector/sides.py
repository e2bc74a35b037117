"""Which sides of the connector an engine has: a prefill node sends KV, a decode node receives it, and with `both_ways` either does both."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from baton.contracts.configuration.schema import LayerSyncPolicy
from baton.contracts.kv_transfer import Role
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.layout.groups import Group, have_states

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig

logger = logging.getLogger(__name__)


class Sides(NamedTuple):
    """Of one engine."""

    role: Role  # the node's own
    all: frozenset[Role]
    layer_sync: LayerSyncPolicy  # policy by which it pushes

    @property
    def pushes_layers(self) -> bool:
        return self.layer_sync != "forward"


def sides_of(vllm_config: "VllmConfig", config: ConnectorConfig, groups: Sequence[Group]) -> Sides:
    """Return the sides of an engine; one that cannot have both has its own role's, and says so in its log."""
    assert vllm_config.kv_transfer_config is not None  # we are the connector
    role, layer_sync = role_of(vllm_config.kv_transfer_config), config.transfer.layer_sync
    if not config.transfer.both_ways:
        return Sides(role, frozenset((role,)), layer_sync)
    if reason := _objection(vllm_config, config, groups):
        logger.warning("transfer.both_ways has no effect on this node: %s", reason)
        return Sides(role, frozenset((role,)), layer_sync)
    # A decode node may have captured whole passes, in which no layer's hook runs; and of what it sends it computes little.
    return Sides(role, frozenset(("prefill", "decode")), layer_sync if role == "prefill" else "forward")


def role_of(transfer: "KVTransferConfig") -> Role:
    """Return the role of a node, whose connector may stand beside others in a `MultiConnector`."""
    extra = transfer.kv_connector_extra_config
    children = (child.get("kv_connector_extra_config", {}) for child in extra.get("connectors", ()))
    said: list[Role] = [settings["role"] for settings in (extra, *children) if "role" in settings]
    return said[0] if said else "prefill" if transfer.is_kv_producer else "decode"


def _objection(vllm_config: "VllmConfig", config: ConnectorConfig, groups: Sequence[Group]) -> str:
    if not vllm_config.cache_config.enable_prefix_caching:
        return "KV of answers is sent out of the prefix cache, and there is none"
    if have_states(groups):
        return "recurrent layers (Mamba, GDN) keep the state of the last token alone"
    return "other connectors stand beside Baton's" if config.has_neighbours else ""
