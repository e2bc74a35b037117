"""Runs a real node, real vLLM included, whose connector is the probe.

`serve` is what a fork server calls; `python -m tests.support.probe_node '{…}'` does the same in a plain process.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from baton.contracts.configuration.schema import BatonConfig, ClusterConfig, NodeConfig
from baton.contracts.kv_transfer import Role
from baton.node import server

MODEL = Path(__file__).resolve().parents[2] / "deploy" / "embedded_model" / "weights"
SERVED_AS = "town"


def serve(role: Role, port: int, runtime_dir: str, secret_file: str) -> None:
    """Serve the embedded model until told to stop."""
    flags = ("--served-model-name", SERVED_AS, "--dtype", "float32", "--kv-cache-memory-bytes", "33554432")
    node = NodeConfig(model=str(MODEL), port=port, vllm_args=flags)
    config = BatonConfig(cluster=ClusterConfig(secret_file=Path(secret_file)))
    config = replace(config, prefill_node=node, decode_node=node)
    server.run(role, config, Path(runtime_dir), connector_module="tests.support.probe_connector")


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
