"""In what a prefill and a decode node differ: one object each, chosen once."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from baton.contracts.configuration.schema import BatonConfig, NodeConfig, TransferConfig
from baton.contracts.kv_transfer import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTraits:
    """What follows from a node's role."""

    role: Role
    kv_role: Literal["kv_producer", "kv_consumer"]  # vLLM's word for it; a node that sends and receives is "kv_both"
    pushes: bool  # its layers' hooks must run, so it may need other graphs


PREFILL = RoleTraits(role="prefill", kv_role="kv_producer", pushes=True)
DECODE = RoleTraits(role="decode", kv_role="kv_consumer", pushes=False)

TRAITS: Mapping[Role, RoleTraits] = MappingProxyType({"prefill": PREFILL, "decode": DECODE})


def roles_of(role: Role, config: TransferConfig) -> frozenset[Role]:
    """Return the roles that a node may have in a transfer."""
    return frozenset(TRAITS) if config.both_ways else frozenset((role,))


def node_config(role: Role, config: BatonConfig) -> NodeConfig:
    """Return the section of the configuration that describes a node of this role."""
    return config.prefill_node if role == "prefill" else config.decode_node
