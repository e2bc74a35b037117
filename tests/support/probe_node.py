"""Runs a real node, real vLLM included, whose connector is the probe.

`serve` is what a fork server calls; `python -m tests.support.probe_node '{…}'` does the same in a plain process.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from baton.contracts.configuration.schema import BatonConfig, ClusterConfig, NodeConfig
from baton.contracts.kv_transfer import Role
from baton.node import server

MODEL = Path(__file__).resolve().parents[2] / "deploy" / "embedded_model" / "weights"
SERVED_AS = "town"


def serve(
    role: Role,
    port: int,
    runtime_dir: str,
    secret_file: str,
    flags: Sequence[str] = (),
    *,
    port_patience_s: float = server.PORT_PATIENCE_S,
) -> None:
    """Serve the embedded model until told to stop."""
    server.PORT_PATIENCE_S = port_patience_s
    usual = ("--served-model-name", SERVED_AS, "--dtype", "float32", "--kv-cache-memory-bytes", "33554432")
    node = NodeConfig(model=str(MODEL), port=port, vllm_args=(*usual, *flags))
    config = BatonConfig(cluster=ClusterConfig(secret_file=Path(secret_file)))
    config = replace(config, prefill_node=node, decode_node=node)
    server.run(role, config, Path(runtime_dir), connector_module="tests.support.probe_connector")


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
