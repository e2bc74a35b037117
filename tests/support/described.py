"""Nodes as they describe themselves."""

from typing import Any, Literal

import msgspec

from baton.contracts.node_info import Fingerprint, NodeInfo


def fingerprint(block_tokens: int = 16, **changes: Any) -> Fingerprint:
    """What both nodes of a test say of their model."""
    plain = Fingerprint(
        weights="w",
        dtype="float32",
        kv_cache_dtype="auto",
        quantization="none",
        rope="r",
        attention="cpu",
        block_size_tokens=block_tokens,
    )
    return msgspec.structs.replace(plain, **changes)


def node_info(role: Literal["prefill", "decode"], **changes: Any) -> NodeInfo:
    ready = NodeInfo(
        role=role,
        state="ready",
        model="/m",
        served_models=["m"],
        max_model_len_tokens=4096,
        incarnation="1",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        control_addresses=["tcp://127.0.0.1:9100"] if role == "prefill" else [],
        fingerprint=fingerprint(),
        regions=[],
        num_blocks=10,
        layer_sync="event",
        versions={},
    )
    return msgspec.structs.replace(ready, **changes)
