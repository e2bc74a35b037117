"""What a worker tells of its token path: to the node, for `/metrics`, and to vLLM's `collective_rpc`."""

import logging
import os
from pathlib import Path
from typing import Any

from vllm.distributed.parallel_state import get_pp_group, get_tp_group

from baton.kv_connector.control.status_server import StatusServer
from baton.kv_connector.errors import ConnectorError
from baton.kv_connector.worker_side.hosts import door_of
from baton.model_runner.audit import SyncAudit, make_audit
from baton.model_runner.channel import RUNNER_SOCKET, RUNTIME_DIR_VARIABLE
from baton.model_runner.multi_host import node_config_of

logger = logging.getLogger(__name__)


class Reports:
    """Mixed into a worker: audits its steps if asked to, and answers what its token path has counted."""

    device: Any
    model_runner: Any
    vllm_config: Any
    _audit = SyncAudit()
    _report_server: StatusServer | None = None

    def init_device(self) -> None:
        """Answer the node from now on, if this rank is one that samples."""
        super().init_device()  # type: ignore[misc]
        self._audit = make_audit(self.device, os.environ)
        folder = os.environ.get(RUNTIME_DIR_VARIABLE)
        if folder and get_pp_group().is_last_rank and get_tp_group().rank_in_group == 0:
            engine = self.vllm_config.parallel_config.data_parallel_index
            self._report_server = _serve(Path(folder, f"dp{engine}") if engine else Path(folder), self)

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        with self._audit.watching():
            return super().execute_model(*args, **kwargs)  # type: ignore[misc]

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        with self._audit.watching():
            return super().sample_tokens(*args, **kwargs)  # type: ignore[misc]

    def token_report(self) -> dict[str, Any]:
        """Return what has been counted; without `tokens` if they come by the engine's own runner."""
        transfer = getattr(self.model_runner, "token_transfer", None)
        report: dict[str, Any] = {
            "runner": type(self.model_runner).__name__,
            "async_scheduling": bool(getattr(self.model_runner, "use_async_scheduling", False)),
            "syncs": self._audit.snapshot(),
        }
        if transfer is not None:
            in_use, slots = transfer.slots
            report["tokens"] = transfer.counts.snapshot() | {"slots": slots, "slots_in_use": in_use}
        return report

    def shutdown(self) -> None:
        self._audit.stop()
        if self._report_server is not None:
            self._report_server.stop()
        transfer = getattr(getattr(self, "model_runner", None), "token_transfer", None)
        if transfer is not None:
            transfer.stop()
        super().shutdown()  # type: ignore[misc]


def _serve(folder: Path, worker: Reports) -> StatusServer | None:
    """Answer in an engine's own folder: the node's for the first, `dp1` and so on for further data-parallel ones."""
    path, vllm_config = folder / RUNNER_SOCKET, worker.vllm_config
    beside_api = getattr(vllm_config.parallel_config, "node_rank_within_dp", 0) == 0  # on the host of the node's API
    config = None if beside_api else node_config_of(vllm_config)
    server = StatusServer(path, worker.token_report, door=door_of(vllm_config, config, path) if config else None)
    try:
        folder.mkdir(exist_ok=True)
        server.start()
    except (ConnectorError, OSError) as exc:
        logger.warning("the node shows no metrics of tokens: %s", exc)
        server.stop()
        return None
    return server
