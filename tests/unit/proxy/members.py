"""Nodes and requests for the tests of pure decisions."""

from typing import Any, Literal

import msgspec

from baton.contracts.node_info import Fingerprint, NodeInfo
from baton.proxy.nodes.node import Node
from baton.proxy.request.endpoints import COMPLETIONS
from baton.proxy.request.parse import ClientRequest, parse

MODEL = "m"
FLOAT32 = Fingerprint(
    weights="w",
    dtype="float32",
    kv_cache_dtype="auto",
    quantization="",
    rope="r",
    attention="cpu",
    block_size_tokens=16,
)
BFLOAT16 = msgspec.structs.replace(FLOAT32, dtype="bfloat16")


def info(role: Literal["prefill", "decode"], **changes: Any) -> NodeInfo:
    """Describe a ready node."""
    ready = NodeInfo(
        role=role,
        state="ready",
        model="/m",
        served_models=[MODEL],
        max_model_len_tokens=10,
        incarnation="1",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        control_addresses=["tcp://p:1"] if role == "prefill" else [],
        fingerprint=FLOAT32,
        regions=[],
        num_blocks=1,
        layer_sync="event",
        versions={},
    )
    return msgspec.structs.replace(ready, **changes)


def node(role: Literal["prefill", "decode"], url: str = "http://n", slot: int = 0, **changes: Any) -> Node:
    """Make a node that was probed."""
    made = Node(url=url, role=role, slot=slot)
    made.describe(info(role, **changes))
    return made


def request(body: dict[str, Any] | None = None) -> ClientRequest:
    """Make a request for one completion."""
    return parse(COMPLETIONS, "id", [], msgspec.json.encode({"model": MODEL, "prompt": "x", **(body or {})}))
