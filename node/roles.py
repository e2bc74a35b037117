"""In what a prefill and a decode node differ: one object each, chosen once."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from baton.contracts.configuration.schema import BatonConfig, NodeConfig
from baton.contracts.kv_transfer import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTraits:
    """What follows from a node's role."""

    role: Role
    kv_role: Literal["kv_producer", "kv_consumer"]  # vLLM's word for it
    pushes: bool  # its layers' hooks must run, so it may need other graphs
    binds_control: bool  # peers dial this node: decode nodes dial prefill nodes
    names_path: bool  # the answer that clients see comes from here, so the path header does too


PREFILL = RoleTraits(role="prefill", kv_role="kv_producer", pushes=True, binds_control=True, names_path=False)
DECODE = RoleTraits(role="decode", kv_role="kv_consumer", pushes=False, binds_control=False, names_path=True)

TRAITS: Mapping[Role, RoleTraits] = MappingProxyType({"prefill": PREFILL, "decode": DECODE})


def node_config(role: Role, config: BatonConfig) -> NodeConfig:
    """Return the section of the configuration that describes a node of this role."""
    return config.prefill_node if role == "prefill" else config.decode_node
