"""The compose files: read by docker-compose itself, which holds them against the specification, and by what the code reads."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.contracts.configuration.load import load
from baton.contracts.configuration.schema import BatonConfig
from baton.deploy.cli import COMMANDS
from baton.kv_connector.engine.mooncake_environment import check_transport
from baton.node.startup.arguments import SHUTDOWN_TIMEOUT_S
from baton.proxy.tracing.tracing import tracing_of
from tests.support.compose import DEMANDED, FOLDER, OVERLAYS, ROOT, compose_files, rendered, seconds

MONITORING = {"COMPOSE_PROFILES": "monitoring"}
MODEL = {"MODEL": "Qwen/Qwen3-8B"}
OURS = ("prefill", "decode", "proxy")
NODES = ("prefill", "decode")
COMBINATIONS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "base": ((), {}),
    "monitoring": ((), MONITORING),
    "cuda": (("cuda",), MODEL),
    "npu": (("npu",), MODEL),
    "secrets": (("secrets",), DEMANDED),
    "all of CUDA": (("cuda", "secrets"), MODEL | DEMANDED | MONITORING),
}


@cache
def combination(name: str) -> dict[str, Any]:
    """What docker-compose makes of one of the combinations: it accepts each file of it, without a warning."""
    overlays, environ = COMBINATIONS[name]
    return rendered(compose_files(*overlays), environ)


@pytest.fixture(params=COMBINATIONS)
def combined(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each combination of files that the documentation names."""
    return combination(request.param)


def _configured(service: dict[str, Any]) -> BatonConfig:
    """What Baton reads from a service's environment."""
    return load({}, service["environment"], None).config


def test_every_overlay_is_tried() -> None:
    """A new overlay has to be named among the combinations."""
    there = {file.name.split(".")[1] for file in FOLDER.glob("compose.*.yaml")}

    assert there == set(OVERLAYS) == {overlay for overlays, _ in COMBINATIONS.values() for overlay in overlays}


def test_the_repositorys_root_says_the_same() -> None:
    """`docker compose up` in the root starts what `-f deploy/compose/compose.yaml` does, or another version that one asks for."""
    included = rendered([ROOT / "compose.yaml"], MONITORING | {"TAG": "1.2.3"})
    named = rendered(compose_files(), MONITORING | {"TAG": "1.2.3"})

    assert included == {key: value for key, value in named.items() if not key.startswith("x-")}
    assert included["services"]["proxy"]["image"] == "baton-proxy:1.2.3"


def test_every_setting_is_one_and_nodes_are_given_the_time_to_drain(combined: dict[str, Any]) -> None:
    """Each BATON_… variable has a value that it may have; Compose kills later than a node or the proxy takes at the most."""
    for name in OURS:
        config = _configured(combined["services"][name])
        tracing_of(config.proxy)
        needs_s = {
            "prefill": config.prefill_node.drain_timeout_s + SHUTDOWN_TIMEOUT_S,
            "decode": config.decode_node.drain_timeout_s + SHUTDOWN_TIMEOUT_S,
            "proxy": config.serve.stop_timeout_s,
        }[name]
        assert needs_s + 5 <= seconds(combined["services"][name]["stop_grace_period"])


def test_up_with_wait_succeeds(combined: dict[str, Any]) -> None:
    """`up --wait` takes the end of a container for a failure, unless one that goes on depends on its success."""
    services = combined["services"]
    once = {name for name, service in services.items() if service.get("restart") == "no"}
    adopted = {
        name
        for service in services.values()
        for name, needed in service.get("depends_on", {}).items()
        if needed["condition"] == "service_completed_successfully" and service.get("restart") == "unless-stopped"
    }

    assert once == adopted


def test_the_proxy_finds_replicas_by_name() -> None:
    """Its members are the services' names, at the ports at which those listen; nothing keeps a service from having replicas."""
    services = combination("base")["services"]
    config = _configured(services["proxy"]).proxy
    nodes = {name: _configured(services[name]) for name in NODES}

    assert config.prefill == (f"dns://prefill:{nodes['prefill'].prefill_node.port}",)
    assert config.decode == (f"dns://decode:{nodes['decode'].decode_node.port}",)
    for name in NODES:
        assert not {"ports", "container_name", "hostname"} & services[name].keys()
        assert services[name]["networks"].keys() <= services["proxy"]["networks"].keys()


def test_every_service_is_pinned_and_confined_and_comes_back(combined: dict[str, Any]) -> None:
    """Read-only, without capabilities, without new privileges; whatever is to stay is started again; logs are bounded.

    An image has a tag that names a version. No variable holds a secret: what is named so is a path.
    """
    for name, service in combined["services"].items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), service["image"]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == ("no" if name == "secret" else "unless-stopped")
        assert "max-size" in service["logging"]["options"]
        assert not service.get("privileged")
        assert service.get("user") != "root"
        for variable, value in service.get("environment", {}).items():
            is_secret = re.search("SECRET|TOKEN|PASSWORD|KEY", variable)
            assert not is_secret or value.startswith("/run/") or value == "true", variable


def test_what_the_services_run_are_commands_of_ours(combined: dict[str, Any]) -> None:
    """And how they are asked for their health."""
    for name, service in combined["services"].items():
        if "build" in service:
            assert service["command"][0] in COMMANDS
            ready = ["--ready"] if name == "proxy" else []
            assert name == "secret" or service["healthcheck"]["test"] == ["CMD", "baton", "health", name, *ready]


def test_nodes_are_reached_by_the_proxy_alone() -> None:
    """Their network leads nowhere, and only loopback has published ports."""
    assert combination("base")["networks"]["nodes"]["internal"] is True
    assert combination("base")["services"]["secret"]["network_mode"] == "none"
    for service in combination("base")["services"].values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", []))


def test_own_secrets_replace_those_that_are_made() -> None:
    """With the overlay nothing makes secrets, and every process reads those of the files."""
    services = combination("secrets")["services"]

    assert "secret" not in services
    for name in OURS:
        config = _configured(services[name])
        mounted = {f"/run/secrets/{secret['source']}" for secret in services[name]["secrets"]}
        assert str(config.cluster.secret_file) in mounted
        assert name != "proxy" or str(config.proxy.admin_token_file) in mounted


def test_secrets_are_made_where_they_are_read() -> None:
    """In a volume that the one which makes them may write, and the others may not."""
    services = combination("base")["services"]
    proxy = _configured(services["proxy"])
    _, *made = services["secret"]["command"]

    assert made == [str(proxy.cluster.secret_file), str(proxy.proxy.admin_token_file)]
    assert {str(_configured(services[name]).cluster.secret_file) for name in OURS} == {made[0]}
    folder = made[0].rpartition("/")[0]
    for name in (*OURS, "secret"):
        (volume,) = [each for each in services[name]["volumes"] if each["target"] == folder]
        assert (volume["source"], volume.get("read_only", False)) == ("secrets", name != "secret")


def test_an_overlay_that_lacks_its_files_is_refused() -> None:
    """It says which variable has to name one."""
    with pytest.raises(ValueError, match="cluster secret"):
        rendered(compose_files("secrets"))


@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_accelerators_take_the_place_of_cores(device: str) -> None:
    """The image is the device's, what concerns threads of a CPU is gone, each role has a device of its own, and its KV a transport."""
    services = combination(device)["services"]

    for name in NODES:
        assert services[name]["image"].startswith(f"baton-node-{device}:")
        assert services[name]["build"]["dockerfile"] == f"deploy/docker/{device}.Dockerfile"
        assert "target" not in services[name]["build"]
        assert not {"OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND"} & services[name]["environment"].keys()
        assert services[name]["ulimits"]["memlock"] == -1
        check_transport(_configured(services[name]).transfer.protocol, device)
    assert services["proxy"]["image"].startswith("baton-proxy:")
    devices = [json.dumps([services[name].get("devices"), services[name].get("deploy")]) for name in NODES]
    assert devices[0] != devices[1]


def test_traces_are_sent_only_where_a_collector_runs() -> None:
    """The proxy and the nodes are told of the collector by the monitoring's profile."""
    flag = "--otlp-traces-endpoint"
    for services, wanted in ((combination("base")["services"], False), (combination("monitoring")["services"], True)):
        proxy = _configured(services["proxy"]).proxy
        prefill = _configured(services["prefill"]).prefill_node
        decode = _configured(services["decode"]).decode_node
        assert bool(proxy.otlp_endpoint) is wanted
        assert (flag in prefill.vllm_args) is (flag in decode.vllm_args) is wanted
    assert not {"prometheus", "grafana", "collector", "traces"} & combination("base")["services"].keys()


def test_the_monitoring_asks_services_where_they_listen() -> None:
    """Prometheus' names and ports are those of the proxy and the nodes; other addresses are services on a common network."""
    services = combination("monitoring")["services"]
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    targets = {(name, found["port"]) for job in scraped for found in job["dns_sd_configs"] for name in found["names"]}
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    sources = yaml.safe_load((FOLDER / "grafana" / "datasources.yaml").read_text())["datasources"]

    assert targets == {("proxy", 8000), ("prefill", 8100), ("decode", 8200)}
    for name, _ in targets:
        assert services[name]["networks"].keys() & services["prometheus"]["networks"].keys()
    assert collector["exporters"]["otlp"]["endpoint"] == "traces:4317"
    assert services["traces"]["networks"].keys() & services["collector"]["networks"].keys()
    assert services["decode"]["networks"].keys() & services["collector"]["networks"].keys()
    assert {source["url"] for source in sources} == {"http://prometheus:9090", "http://traces:16686"}


def test_what_is_mounted_from_the_repository_is_there() -> None:
    """A missing file would become an empty folder."""
    services = combination("monitoring")["services"].values()
    volumes = [volume for service in services for volume in service.get("volumes", [])]
    bound = [Path(volume["source"]) for volume in volumes if volume["type"] == "bind"]

    assert bound
    assert all(path.is_relative_to(ROOT / "deploy") and path.exists() for path in bound)
