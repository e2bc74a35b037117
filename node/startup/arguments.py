"""From Baton's configuration to the arguments of vLLM's OpenAI server. Pure: no socket, file, torch or vLLM."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from baton.contracts.configuration.schema import NodeConfig, TransferConfig
from baton.contracts.kv_transfer import Role
from baton.node.roles import KV_ROLES, roles_of
from baton.node.startup.addresses import Addresses
from baton.node.startup.extra_connectors import wrap_multi_connector
from baton.node.startup.flags import given

MIDDLEWARE = "baton.node.middleware.NodeMiddleware"
CONNECTOR_MODULE = "baton.kv_connector.connector"
SCHEDULER = "baton.kv_connector.scheduler_side.scheduler.make_scheduler"
CONTROL_PORT_OFFSET = 1000
SHUTDOWN_TIMEOUT_S = 5  # for requests in progress and the connector, after which the engine is killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that the arguments of one node follow from."""

    role: Role
    node: NodeConfig
    transfer: TransferConfig
    secret_file: Path
    runtime_dir: Path
    addresses: Addresses
    device: str  # vLLM's device type: "cpu", "cuda", "npu"
    worker_class: str  # import path
    kv_cache_bytes: int  # on a CPU, unless a flag says otherwise
    weights: str  # digest of the weights' revision


def vllm_arguments(launch: Launch) -> list[str]:
    """Return the argument list for vLLM's OpenAI server; the user's own flags, already checked, come last."""
    return [
        *("--model", launch.node.model),
        *("--host", launch.addresses.listen_host),
        *("--port", str(launch.node.port)),
        *("--worker-cls", launch.worker_class),
        *("--middleware", MIDDLEWARE),
        *("--kv-transfer-config", json.dumps(kv_transfer_config(launch))),
        *_defaults(launch),
        *launch.node.vllm_args,
    ]


def control_port(node: NodeConfig) -> int:
    """Return the port at which a node that sends KV waits for those that receive it."""
    return node.control_port or node.port + CONTROL_PORT_OFFSET


def kv_transfer_config(launch: Launch) -> dict[str, Any]:
    baton = {
        "kv_connector": "BatonConnector",
        "kv_connector_module_path": CONNECTOR_MODULE,
        # Of either role vLLM does what it needs for it, above all free no block that a step under way writes to: it may
        # be received into.
        "kv_role": "kv_both" if launch.transfer.both_ways else KV_ROLES[launch.role],
        "kv_load_failure_policy": "recompute",  # vLLM's own default fails the request
        "kv_connector_extra_config": _connector_settings(launch),
    }
    return wrap_multi_connector(baton, launch.node.beside, launch.role)


def _connector_settings(launch: Launch) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "role": launch.role,
        "runtime_dir": str(launch.runtime_dir),
        "secret_file": str(launch.secret_file),  # never the secret: arguments are visible to the whole machine
        "advertise_host": launch.addresses.advertise_host,
        "data_host": launch.addresses.data_host,
        "transfer": asdict(launch.transfer),
        "weights": launch.weights,
    }
    if "prefill" in roles_of(launch.role, launch.transfer):
        settings["control_host"] = launch.addresses.listen_host
        settings["control_port"] = control_port(launch.node)
    if launch.role == "prefill":  # its layers' hooks must run, so it may need other graphs
        settings["layerwise"] = launch.transfer.layer_sync != "forward"
    return settings


def _defaults(launch: Launch) -> list[str]:
    """Return our flags that the user may give otherwise."""
    theirs, defaults = launch.node.vllm_args, list[str]()
    # It ends and starts requests at their first tokens; vllm-ascend brings schedulers of its own.
    if launch.device != "npu" and not given(theirs, "--scheduler-cls"):
        defaults += ["--scheduler-cls", SCHEDULER]
    # By default vLLM kills the engine in the middle of its orderly end, and peers would have to find out by silence.
    if not given(theirs, "--shutdown-timeout"):
        defaults += ["--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)]
    if launch.device == "cpu":
        if not given(theirs, "--enforce-eager", "--compilation-config", "-cc", "--optimization-level", "-O"):
            defaults.append("--enforce-eager")
        if not given(theirs, "--kv-cache-memory-bytes", "--gpu-memory-utilization"):
            defaults += ["--kv-cache-memory-bytes", str(launch.kv_cache_bytes)]
    return defaults
