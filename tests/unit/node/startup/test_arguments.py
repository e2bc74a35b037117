import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.configuration.schema import NodeConfig, TransferConfig
from baton.contracts.kv_transfer import Role
from baton.kv_connector.config import ConnectorConfig
from baton.node.startup.addresses import Addresses
from baton.node.startup.arguments import Launch, kv_transfer_config, vllm_arguments

ADDRESSES = Addresses(listen_host="0.0.0.0", advertise_host="node-1", data_host="10.0.0.5")


def launch(role: Role = "prefill", *flags: str, device: str = "cpu", **changes: Any) -> Launch:
    plain = Launch(
        role=role,
        node=NodeConfig(model="/models/m", port=8100, vllm_args=flags),
        transfer=TransferConfig(),
        secret_file=Path("/run/secret"),
        runtime_dir=Path("/run/baton"),
        addresses=ADDRESSES,
        device=device,
        worker_class="baton.model_runner.cpu.Worker",
        kv_cache_bytes=4096,
        weights="d1",
    )
    return replace(plain, **changes)


def value_after(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_server_gets_what_makes_it_a_node() -> None:
    arguments = vllm_arguments(launch())

    assert value_after(arguments, "--model") == "/models/m"
    assert value_after(arguments, "--host") == "0.0.0.0"
    assert value_after(arguments, "--port") == "8100"
    assert value_after(arguments, "--worker-cls") == "baton.model_runner.cpu.Worker"
    assert value_after(arguments, "--middleware") == "baton.node.middleware.NodeMiddleware"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_connector_settings_are_what_the_connector_reads(role: Role) -> None:
    extra = kv_transfer_config(launch(role))["kv_connector_extra_config"]
    assert ConnectorConfig.from_extra(json.loads(json.dumps(extra))).data_host == "10.0.0.5"


def test_a_prefill_node_produces_and_says_where_it_is_dialled() -> None:
    """The connector of a prefill node binds its control port, by default 1000 above the HTTP port."""
    config = kv_transfer_config(launch("prefill"))

    assert config["kv_role"] == "kv_producer"
    assert config["kv_connector"] == "BatonConnector"
    assert config["kv_connector_module_path"] == "baton.kv_connector.connector"
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_connector_extra_config"] == {
        "role": "prefill",
        "runtime_dir": "/run/baton",
        "secret_file": "/run/secret",
        "control_host": "0.0.0.0",
        "control_port": 9100,
        "advertise_host": "node-1",
        "data_host": "10.0.0.5",
        "transfer": asdict(TransferConfig()),
        "weights": "d1",
        "layerwise": True,
    }


def test_a_decode_node_consumes_and_binds_no_control_port() -> None:
    """Decode nodes dial; no peer dials them for control."""
    config = kv_transfer_config(launch("decode"))

    assert config["kv_role"] == "kv_consumer"
    assert not {"control_host", "control_port", "layerwise"} & set(config["kv_connector_extra_config"])


@pytest.mark.parametrize(
    ("role", "changes", "kv_role", "port", "layerwise"),
    [
        # To vLLM it has both roles; a decode node pushes after the pass, so that it may capture whole passes.
        ("prefill", {"transfer": TransferConfig(both_ways=True)}, "kv_both", 9100, True),
        ("decode", {"transfer": TransferConfig(both_ways=True)}, "kv_both", 9100, False),
        ("prefill", {"node": NodeConfig(port=8100, control_port=7000)}, "kv_producer", 7000, True),
        # No layer's hook has to run, so full graphs are fine.
        ("prefill", {"transfer": TransferConfig(layer_sync="forward")}, "kv_producer", 9100, False),
    ],
)
def test_settings_decide_how_a_node_is_dialled_and_whether_it_pushes_layer_by_layer(
    role: Role, changes: dict[str, Any], kv_role: str, port: int, layerwise: bool
) -> None:
    config = kv_transfer_config(launch(role, **changes))

    extra = config["kv_connector_extra_config"]
    assert (config["kv_role"], extra["role"], extra["control_port"]) == (kv_role, role, port)
    assert extra.get("layerwise", False) is layerwise


def test_connectors_beside_batons_stand_in_one_that_asks_all() -> None:
    node = NodeConfig(model="/models/m", port=8100, beside=({"kv_connector": "X", "kv_connector_extra_config": {}},))

    config = json.loads(value_after(vllm_arguments(launch("decode", node=node)), "--kv-transfer-config"))

    children = config["kv_connector_extra_config"]["connectors"]
    assert (config["kv_connector"], [child["kv_connector"] for child in children]) == (
        "MultiConnector",
        ["BatonConnector", "X"],
    )
    assert children[0]["kv_role"] == "kv_consumer"


@pytest.mark.parametrize(("device", "is_small"), [("cpu", True), ("cuda", False)])
def test_a_cpu_node_is_eager_and_has_a_modest_cache(device: str, is_small: bool) -> None:
    """The defaults of vLLM would compile for half a minute and take all memory; on an accelerator they are right."""
    arguments = vllm_arguments(launch(device=device))

    assert ("--enforce-eager" in arguments) == is_small
    assert (arguments[-2:] == ["--kv-cache-memory-bytes", "4096"]) == is_small


@pytest.mark.parametrize(
    ("flags", "ours"),
    [
        *((flags, "--enforce-eager") for flags in (("--no-enforce-eager",), ("-O2",), ("-cc.mode=0",))),
        (("--compilation-config.mode", "0"), "--enforce-eager"),
        *(((flag, "1"), "4096") for flag in ("--kv-cache-memory-bytes", "--gpu-memory-utilization")),
    ],
)
def test_the_user_may_choose_compilation_and_the_cache_size(flags: tuple[str, ...], ours: str) -> None:
    """Any flag about it turns the default off."""
    assert ours not in vllm_arguments(launch("prefill", *flags))


def test_the_users_flags_come_last_and_a_number_of_blocks_leaves_the_memory_as_it_is() -> None:
    """Without a size vLLM would take nearly all of the machine's memory first, and fail beside another node."""
    arguments = vllm_arguments(launch("prefill", "--num-gpu-blocks-override", "40"))

    assert value_after(arguments, "--kv-cache-memory-bytes") == "4096"
    assert arguments[-2:] == ["--num-gpu-blocks-override", "40"]
    assert "--disable-log-stats" not in arguments  # the proxy routes by them


def test_a_stopping_engine_has_time_for_an_orderly_end() -> None:
    """The connector tells its peers; how long that may take can be chosen."""
    assert value_after(vllm_arguments(launch()), "--shutdown-timeout") == "5"
    assert vllm_arguments(launch("prefill", "--shutdown-timeout", "30")).count("--shutdown-timeout") == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("device", "ours"), [("cpu", 1), ("cuda", 1), ("npu", 0)])
def test_both_roles_have_our_scheduler(role: Role, device: str, ours: int) -> None:
    """But where vllm-ascend brings its own, or the user names one."""
    arguments = vllm_arguments(launch(role, device=device))

    assert arguments.count("--scheduler-cls") == ours
    assert vllm_arguments(launch(role, "--scheduler-cls", "their.own", device=device)).count("--scheduler-cls") == 1
