"""What the ranks of a node on several hosts tell each other before they serve.

Each host has a configuration from its own files: they must agree, or peers would get what was not asked for. The node's
API, on the first host, learns where the ranks of the others answer it (`control/status_endpoints.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from baton.contracts.kv_transfer import PROTOCOL_VERSION
from baton.contracts.node_info import to_plain
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.control.status_endpoints import FAR_SUFFIX, Door, IpcEndpoint, TcpEndpoint
from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_OF_A_STAGE = ("attention",)  # of a fingerprint: pipeline stages may have layers of other kinds


class Member(NamedTuple):
    """What one rank tells the others."""

    host: int  # --node-rank
    name: str  # for people
    settings: Mapping[str, str]  # that must be the same everywhere
    doors: Mapping[str, str]  # file in the engine's folder → address


def door_of(vllm_config: "VllmConfig", config: ConnectorConfig, path: Path) -> Door:
    if _host(vllm_config) == 0:
        return IpcEndpoint(path)
    return TcpEndpoint(path, config.data_host, config.secret())


def verify_hosts_agree(vllm_config: "VllmConfig", config: ConnectorConfig) -> None:
    """Compare settings with the ranks on other hosts; on the first host, write down where those answer.

    All ranks of the node call it at the same time. Raises `ConnectorConfigError` if the hosts do not agree.
    """
    if getattr(vllm_config.parallel_config, "nnodes_within_dp", 1) == 1:
        return
    host = _host(vllm_config)
    members = _gather(
        Member(
            host=host,
            name=f"{config.advertise_host} (--node-rank {host})",
            settings=settings_of(vllm_config, config),
            doors={path.name: path.read_text() for path in config.engine_dir.glob(f"*{FAR_SUFFIX}")} if host else {},
        )
    )
    if found := disagreement(members):
        raise ConnectorConfigError(found)
    if host == 0:
        write_doors(config.engine_dir, members)


def settings_of(vllm_config: "VllmConfig", config: ConnectorConfig) -> dict[str, str]:
    """Return what must be the same on all hosts of a node, beyond what vLLM itself would fail over."""
    from vllm import __version__

    fingerprint = to_plain(fingerprint_of(vllm_config, config.weights))
    scheduler = vllm_config.scheduler_config
    return {
        **{name: str(value) for name, value in fingerprint.items() if name not in _OF_A_STAGE},
        "role": config.role,
        "protocol": str(PROTOCOL_VERSION),
        "vllm": __version__,
        "transfer": str(config.transfer),
        "max_model_len": str(vllm_config.model_config.max_model_len),
        "max_num_batched_tokens": str(scheduler.max_num_batched_tokens),
        "max_num_seqs": str(scheduler.max_num_seqs),
    }


def disagreement(members: Sequence[Member]) -> str:
    """Name what differs between the first member and another, with both values; "" if nothing does."""
    first = members[0]
    for other in members[1:]:
        if differing := sorted(name for name in first.settings if first.settings[name] != other.settings.get(name)):
            found = "; ".join(
                f"{name}: {first.settings[name]!r} and {other.settings.get(name)!r}" for name in differing
            )
            return f"the hosts {first.name} and {other.name} of this node differ: {found}"
    return ""


def write_doors(folder: Path, members: Sequence[Member]) -> None:
    for member in members:
        for name, address in member.doors.items():
            new = folder / f".{name}"
            new.write_text(address)
            new.rename(folder / name)  # a reader sees all of it or nothing


def _host(vllm_config: "VllmConfig") -> int:
    return int(getattr(vllm_config.parallel_config, "node_rank_within_dp", 0))


def _gather(mine: Member) -> list[Member]:
    """Return what every rank of the engine tells, in the ranks' order."""
    import torch.distributed
    from vllm.distributed.parallel_state import get_inner_dp_world_group

    group = get_inner_dp_world_group()
    found: list[Member] = [mine] * group.world_size
    torch.distributed.all_gather_object(found, mine, group=group.cpu_group)
    return found
