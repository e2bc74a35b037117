"""One example of everything that crosses from one release to another, every field of it given."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from baton.contracts.kv_transfer import PROTOCOL_VERSION, Grid, Grids, TransferParams, sign
from baton.contracts.node_info import Fingerprint, NodeInfo, NodeLoad, RegionInfo
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.protocol.messages import (
    Beat,
    Body,
    Commit,
    Fail,
    Hello,
    Introduce,
    Message,
    OpenEpoch,
    Rank,
    Refuse,
    Reserve,
    Revoke,
    Started,
    encode,
)

SECRET: Final = ClusterSecret(b"a secret that is in the repository")
TRANSFER: Final = "0123456789abcdef" * 2
FINGERPRINT: Final = Fingerprint(
    weights="w",
    dtype="float32",
    kv_cache_dtype="float32",
    quantization="none",
    rope="r",
    attention="CPU_ATTN/vec",
    block_size_tokens=128,
)
REGION: Final = RegionInfo(name="k", layer=0, base_addr=1 << 47, block_bytes=64, stride_bytes=128, num_blocks=9)
DIVIDED: Final = RegionInfo(
    name="kv",
    layer=1,
    base_addr=1 << 46,
    block_bytes=2048,
    stride_bytes=4096,
    num_blocks=9,
    kernel_blocks=2,
    heads=2,
    total_heads=8,
    sections=((4, 8), (1, 32)),
    group=1,
    window=1024,
    drafter="d",
)
GRIDS: Final = Grids(prefill=Grid(tp=2, pp=1), decode=Grid(tp=1, pp=2))

BODIES: Mapping[str, Body] = MappingProxyType(
    {
        "hello": Hello(
            node="decode node 10.0.0.2",
            rank=Rank(tp=1, tp_size=2, pp=0, pp_size=1),
            fingerprint=FINGERPRINT,
            regions=[REGION, DIVIDED],
        ),
        "refuse": Refuse(reason="dtype: 'float32' here, 'bfloat16' there"),
        "introduce": Introduce(),
        "beat": Beat(open=[OpenEpoch(TRANSFER, 1), OpenEpoch("u", 0)]),
        "started": Started(transfer_id=TRANSFER, tokens=300),
        "reserve": Reserve(
            transfer_id=TRANSFER,
            epoch=1,
            engine="10.0.0.2:12001",
            tokens=300,
            from_token=128,
            blocks=[[2, 0], [0, 7]],
            prompt_hash=b"\0\xff",
        ),
        "revoke": Revoke(transfer_id=f"{TRANSFER}/1-0", epoch=1, mismatch="k: block 2"),
        "commit": Commit(
            transfer_id=TRANSFER,
            epoch=1,
            tokens=300,
            prompt_hash=b"\0\xff",
            shards=2,
            shares=8,
            cached_tokens=128,
            timings_s={"commit": 0.5},
            pushing_s=0.25,
            digests=b"12345678",
        ),
        "fail": Fail(transfer_id=TRANSFER, epoch=1, dirty=True, reason="a push failed"),
    }
)

PARAMS: Mapping[str, TransferParams] = MappingProxyType(
    {
        "prefill": TransferParams(transfer_id=TRANSFER, role="prefill", peer=""),
        "decode": TransferParams(transfer_id=TRANSFER, role="decode", peer="tcp://10.0.0.1:9100", several=True),
        "several ranks": TransferParams(
            transfer_id=TRANSFER, role="decode", peer="tcp://10.0.0.1:9100,tcp://10.0.0.1:9101", grids=GRIDS
        ),
    }
)

NODE: Final = NodeInfo(
    role="prefill",
    state="ready",
    model="/models/m",
    served_models=["m"],
    max_model_len_tokens=4096,
    incarnation="00000000000000ff",
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    data_parallel_size=1,
    control_addresses=["tcp://10.0.0.1:9100"],
    fingerprint=FINGERPRINT,
    regions=[REGION],
    num_blocks=9,
    layer_sync="event",
    versions={"baton": "0.1.0", "protocol": str(PROTOCOL_VERSION), "vllm": "0.32.0"},
    load=NodeLoad(requests=1, prompt_bytes=2, running=3, waiting=4, kv_usage=0.5),
    routes=["/v1/completions"],
)


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    frames: dict[str, str]  # name of the message → the frame, in hexadecimal digits
    params: dict[str, dict[str, Any]]  # name → `kv_transfer_params`
    node: dict[str, Any]  # body of `GET /baton/node`


def file_of(version: int) -> Path:
    return Path(__file__).parent / f"protocol-{version}.json"


def present() -> Wire:
    """The examples as this release sends them."""
    return Wire(
        frames={name: encode(Message(1, 2, 3, body)).hex() for name, body in BODIES.items()},
        params={role: sign(params, SECRET) for role, params in PARAMS.items()},
        node=msgspec.to_builtins(NODE),
    )
