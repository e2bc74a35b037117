"""A KV connector that moves nothing: it answers the node's snapshot requests and reports made-up outcomes.

With it a real vLLM server can be started under the node without Mooncake and without a peer.
"""

import json
import threading
from pathlib import Path
from typing import Any

import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_world_group

from baton.contracts.kv_transfer import FIELD, KEY
from baton.kv_connector.control.status_server import OutcomeSender

WORKER = {
    "incarnation": "00ff",
    "control_address": "",
    "fingerprint": {
        "weights": "w",
        "dtype": "float32",
        "kv_cache_dtype": "auto",
        "quantization": "none",
        "rope": "r",
        "attention": "CPU_ATTN",
        "block_size_tokens": 128,
    },
    "regions": [],
    "num_blocks": 7,
    "layer_sync": "event",
    "engine": {},
    "transfers": [{"transfer_id": "a" * 32, "state": "pushing", "age_s": 0.5}],
}
SCHEDULER = {
    "num_blocks": 7,
    "free_blocks": 6,
    "block_size": 128,
    "transfers": [{"transfer_id": "a" * 32, "request_id": "cmpl-1", "blocks_held": 1}],
}


class BatonConnector(KVConnectorBase_V1):
    """Does nothing for any request, and says so where the node listens."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._runtime_dir = Path(extra["runtime_dir"])
        scheduler = role is KVConnectorRole.SCHEDULER
        self._name = "scheduler" if scheduler else f"worker-{get_world_group().rank}"
        answer = SCHEDULER if scheduler else WORKER
        threading.Thread(
            target=answer_snapshots, args=(self._runtime_dir / f"{self._name}.sock", answer), daemon=True
        ).start()
        if scheduler:
            self._outcomes = OutcomeSender(self._runtime_dir / "outcomes.sock")

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Load nothing; report a request whose transfer id starts with "b" as recomputed."""
        transfer_id = ((request.kv_transfer_params or {}).get(KEY) or {}).get("id", "")
        if transfer_id.startswith("b"):
            self._outcomes.send(transfer_id, "recomputed", f"no {FIELD} for the probe")
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing to note."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Nothing to say to the worker."""
        return KVConnectorMetadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to save."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""

    def shutdown(self) -> None:
        """Leave a mark, so that a test sees an orderly end."""
        (self._runtime_dir / f"{self._name}.stopped").touch()


def answer_snapshots(path: Path, answer: dict[str, Any]) -> None:
    """Answer every request on the socket with the same object, for ever."""
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(f"ipc://{path}")
    while True:
        socket.recv()
        socket.send(json.dumps(answer).encode())
