"""Mooncake's settings, which it reads from the process environment when its first engine starts.

What an operator has set stays as it is, except where a value would break the hand-off's rules: that is refused with a
sentence. Measured on 0.3.13.post1.
"""

import os
from collections.abc import Mapping, MutableMapping

from baton.kv_connector.errors import ConnectorConfigError

_DEFAULTS = {
    "MC_LOG_LEVEL": "ERROR",  # at INFO every engine prints ten lines; `GLOG_minloglevel` is overwritten
    "MC_TRANSFER_TIMEOUT": "5",  # s
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "2",  # s; the first write to a peer asks it for its addresses
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "2",  # a stopped peer fails a write after 2 s instead of 30
    "MC_TCP_STATUS_TIMEOUT_SEC": "2",
    "MC_TCP_LANES_PER_PEER": "1",  # more are no faster, and with one the writes of a push finish in order
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",  # beyond some 2,050 queued writes the default fails them all
}

# `MC_DISABLE_METACACHE` is left alone: it makes every write ask the peer again, at 0.5 ms each. Without it a session
# name that is drawn again fails its writes; the fence that follows gives the receiver a new name.

_REFUSED = {
    "MC_TCP_PROTO": "its version 1 reports a write as done when it enters the socket, not when it has been applied",
    "MC_USE_TENT": "it selects another engine, whose fence has not been checked",
    "MC_USE_TEV1": "it selects another engine, whose fence has not been checked",
}
_HARMLESS = {"MC_TCP_PROTO": "2"}


def prepare_environment(host: str, protocol: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Complete Mooncake's environment. Must run before the first engine of the process is made.

    Raises `ConnectorConfigError` if a variable is set that the hand-off cannot work with.
    """
    for name, why in _REFUSED.items():
        if name in environ and environ[name] != _HARMLESS.get(name):
            raise ConnectorConfigError(f"{name}={environ[name]} must not be set: {why}")
    settings = dict(_DEFAULTS)
    if protocol == "tcp":  # Mooncake ignores the name and takes RDMA wherever it finds a card, unless told so
        settings |= {"MC_FORCE_TCP": "1", "MC_TCP_BIND_ADDRESS": host}
    elif "MC_FORCE_TCP" in environ:
        raise ConnectorConfigError(f"MC_FORCE_TCP is set, but transfer.protocol is {protocol!r}")
    for name, value in settings.items():
        environ.setdefault(name, value)


def port_range(environ: Mapping[str, str] = os.environ) -> range:
    """Return the ports that Mooncake draws from, for control and data; what it cannot use it replaces by its own."""
    low, high = (environ.get(name, "") for name in ("MC_MIN_RPC_PORT", "MC_MAX_RPC_PORT"))
    first, last = (int(value) if value.isdecimal() else port for value, port in ((low, 15_000), (high, 17_000)))
    return range(first, last + 1) if 0 < first <= last < 65_536 else range(15_000, 17_001)


def check_transport(protocol: str, device_type: str) -> None:
    """Check that a transport can carry the KV of a device, and that its late writes can be fenced.

    Raises `ConnectorConfigError` if not; the message says which transport to take.
    """
    if protocol == "nvlink":
        raise ConnectorConfigError(
            "transfer.protocol 'nvlink': a prefill node would write through a mapping of its own, which stays when the "
            "decode node destroys its receiving engine, so late writes could not be kept out: use rdma or tcp"
        )
    if (protocol == "ascend") != (device_type == "npu"):
        others = "'ascend'" if device_type == "npu" else "tcp or rdma"
        raise ConnectorConfigError(
            f"transfer.protocol {protocol!r} cannot carry the KV of a {device_type} device: use {others}"
        )
