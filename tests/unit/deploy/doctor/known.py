"""Nodes for tests: two that fit, on machines of their own."""

from typing import Any

import msgspec

from baton.contracts.kv_transfer import PROTOCOL_VERSION, Role
from baton.contracts.node_info import NodeInfo, RegionInfo
from baton.contracts.probe import UNLIMITED, Machine
from baton.deploy.doctor.fit import Known
from tests.support.described import fingerprint, node_info

FINGERPRINT = fingerprint(128)
REGION = RegionInfo(name="layer.0", layer=0, base_addr=4096, block_bytes=1024, stride_bytes=1024, num_blocks=10)
VERSIONS = {"baton": "0.1.0", "vllm": "0.32.0", "mooncake": "0.3.13", "protocol": str(PROTOCOL_VERSION)}


def info(_role: Role, **changes: Any) -> NodeInfo:
    addresses = ["tcp://10.0.0.1:9100"] if _role == "prefill" else []
    plain = {"control_addresses": addresses, "fingerprint": FINGERPRINT, "regions": [REGION], "versions": VERSIONS}
    return msgspec.structs.replace(node_info(_role), **(plain | changes))


def machine(**changes: Any) -> Machine:
    """A machine with nothing wrong."""
    found = Machine(
        name="a", data_host="10.0.0.1", protocol="tcp", open_files=65_536, locked_bytes=UNLIMITED, rdma_devices=[]
    )
    return msgspec.structs.replace(found, **changes)


def prefill(url: str = "http://10.0.0.1:8100", **changes: Any) -> Known:
    """A prefill node; `changes` are of what it says."""
    return Known(url=url, role="prefill", info=info("prefill", **changes), machine=machine(name="p"))


def decode(url: str = "http://10.0.0.2:8200", engines: tuple[str, ...] = ("10.0.0.2:15001",), **changes: Any) -> Known:
    """A decode node; likewise."""
    return Known(url=url, role="decode", info=info("decode", **changes), machine=machine(name="d"), engines=engines)
