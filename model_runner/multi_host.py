"""Ties the ranks of a node that are on several hosts to each other: if one has gone, all go.

vLLM watches each host's processes by itself. With one host gone, the ranks of the others would wait, in a collective
call or for their next step, for as long as vLLM's and torch's time-outs let them, with the blocks of their peers.
"""

import logging
import os
from typing import TYPE_CHECKING, Any, Final

import torch.distributed
from vllm.distributed.parallel_state import get_inner_dp_world_group

from baton.kv_connector.config import ConnectorConfig
from baton.model_runner.rank_monitor import RankLink, RankMonitor

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

EXIT_LOST: Final = 70


class MultiHostWorker:
    """Mixin of a worker whose node may have ranks on other hosts."""

    vllm_config: Any
    _tie: RankMonitor | RankLink | None = None

    def init_device(self) -> None:
        """Tie this rank to the others, as soon as they know each other: loading a model may take long."""
        super().init_device()  # type: ignore[misc]
        self._tie = connect_ranks(self.vllm_config)

    def shutdown(self) -> None:
        if self._tie is not None:
            self._tie.close()
        super().shutdown()  # type: ignore[misc]


def node_config_of(vllm_config: "VllmConfig") -> ConnectorConfig | None:
    """Return the connector's settings, where this is a node that is alone with its connector."""
    transfer = vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_connector != "BatonConnector":
        return None
    return ConnectorConfig.from_extra(transfer.kv_connector_extra_config)


def connect_ranks(vllm_config: "VllmConfig") -> RankMonitor | RankLink | None:
    """Connect this rank with those on other hosts, if there are any; all ranks of the engine call it at the same time."""
    parallel = vllm_config.parallel_config
    config = node_config_of(vllm_config)
    if getattr(parallel, "nnodes_within_dp", 1) == 1 or config is None:
        return None
    group = get_inner_dp_world_group()
    secret = config.secret()
    hub = RankMonitor(config.data_host, secret) if group.rank_in_group == 0 else None
    told: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(told, hub and hub.address, group=group.cpu_group)
    if hub is not None:
        hub.wait_for(set(range(parallel.local_world_size, group.world_size)), _end)
        return hub
    if parallel.node_rank_within_dp == 0:
        return None  # vLLM's own watch has both of us
    return RankLink(told[0], secret, group.rank_in_group, _end)


def _end(who: str, farewell: bool) -> None:
    """End this process; vLLM's executor on this host then ends all the others."""
    if farewell:
        logger.warning("%s has been stopped: so is this one", who)
    else:
        logger.error("%s, on another host, has gone: the node cannot go on", who)
    logging.shutdown()
    os._exit(0 if farewell else EXIT_LOST)
