"""What follows from a node's role."""

from collections.abc import Mapping

from baton.contracts.configuration.schema import BatonConfig, NodeConfig, TransferConfig
from baton.contracts.kv_transfer import Role

# vLLM's words for them; a node that sends and receives is "kv_both".
KV_ROLES: Mapping[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}


def roles_of(role: Role, config: TransferConfig) -> frozenset[Role]:
    """Return the roles that a node may have in a transfer."""
    return frozenset(KV_ROLES) if config.both_ways else frozenset((role,))


def node_config(role: Role, config: BatonConfig) -> NodeConfig:
    """Return the section of the configuration that describes a node of this role."""
    return config.prefill_node if role == "prefill" else config.decode_node
