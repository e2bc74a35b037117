"""What a mock says of itself on the node API."""

import secrets

from baton.contracts.node_info import Fingerprint, NodeInfo
from baton.loadtest.mock_engine.settings import MAX_MODEL_LEN_TOKENS, MODEL, Role

_FINGERPRINT = Fingerprint(
    weights="mock",
    dtype="bfloat16",
    kv_cache_dtype="auto",
    quantization="none",
    rope="mock",
    attention="mock",
    block_size_tokens=16,
)


def describe(role: Role, port: int) -> NodeInfo:
    """Describe a node that is ready and holds no KV cache."""
    return NodeInfo(
        role=role,
        state="ready",
        model=MODEL,
        served_models=[MODEL],
        max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
        incarnation=secrets.token_hex(16),
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        control_addresses=[f"tcp://127.0.0.1:{port}"] if role == "prefill" else [],
        fingerprint=_FINGERPRINT,
        regions=[],
        num_blocks=0,
        layer_sync="event",
        versions={"baton": "mock"},
    )
