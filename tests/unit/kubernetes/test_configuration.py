"""The baton.yaml of every pod is one that Baton takes, and the objects around it say the same as it does."""

import re
from functools import cache, partial
from math import prod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import pytest

from baton.contracts.configuration.load import load
from baton.contracts.configuration.schema import BatonConfig, NodeConfig
from baton.deploy.cli import COMMANDS
from baton.node.command import parse
from baton.node.follower import OUTLIVE_S
from baton.node.startup.arguments import SHUTDOWN_TIMEOUT_S, control_port
from baton.node.startup.flags import ranks_of, refuse_owned
from baton.node.startup.hosts import Hosts, hosts_of
from baton.proxy.__main__ import command_line
from baton.proxy.nodes.health_probe import HEALTH_PATH
from tests.support.kubernetes.render import Object, component_of, container_of, named, pod_templates, render

COREDNS_CACHE_S: Final = 30  # what kubeadm's CoreDNS keeps an answer for
SPARE_S: Final = 10
NODES: Final = ("prefill", "decode")


@cache
def _loaded(overlay: str, component: str) -> BatonConfig:
    """Load the file of a component as its pods do, with their environment."""
    template = _template(overlay, component)
    volume = next(each for each in template["spec"]["volumes"] if each["name"] == "config")
    settings = named(render(overlay), "ConfigMap", re.sub(r"-[a-z0-9]{10}$", "", volume["configMap"]["name"]))
    assert settings["metadata"]["name"] == volume["configMap"]["name"]
    environ = {each["name"]: each["value"] for each in container_of(template).get("env", ()) if "value" in each}
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(settings["data"]["baton.yaml"])
        file.flush()
        return load({}, environ, Path(file.name)).config


def _template(overlay: str, component: str) -> Object:
    """Return the template of the pods that run `baton`."""
    return next(each for each in pod_templates(render(overlay)).values() if component_of(each) == component)


def _node(config: BatonConfig, role: str) -> NodeConfig:
    return config.prefill_node if role == "prefill" else config.decode_node


def _grace_s(template: Object) -> int:
    return int(template["spec"]["terminationGracePeriodSeconds"])


def _hook_s(template: Object) -> int:
    return int(container_of(template)["lifecycle"]["preStop"]["sleep"]["seconds"])


def _ports(template: Object) -> dict[str, int]:
    return {each["name"]: each["containerPort"] for each in container_of(template)["ports"]}


def test_proxies_find_the_nodes_by_headless_services(overlay: str) -> None:
    """A name stands for the addresses of all ready pods, at the port at which the nodes listen."""
    config = _loaded(overlay, "proxy")
    services = {each["metadata"]["name"]: each["spec"] for each in render(overlay) if each["kind"] == "Service"}

    for role, urls in (("prefill", config.proxy.prefill), ("decode", config.proxy.decode)):
        assert urls == (f"dns://{role}:{_ports(_template(overlay, role))['http']}",)
        assert services[role]["clusterIP"] == "None"
        assert services[role]["selector"]["app.kubernetes.io/component"] == role
        assert not services[role].get("publishNotReadyAddresses")


def test_ports_are_those_of_the_configuration(overlay: str) -> None:
    """Probes, policies and Services name the container's ports. A prefill node listens at one more for each rank: at a range."""
    assert _ports(_template(overlay, "proxy")) == {"http": _loaded(overlay, "proxy").proxy.port}
    for role in NODES:
        node = _node(_loaded(overlay, role), role)
        control = {"control": control_port(node)} if role == "prefill" else {}
        assert _ports(_template(overlay, role)) == {"http": node.port} | control
        assert node.host == "0.0.0.0"
        assert node.model  # a node by itself has no default
    (ports,) = named(render(overlay), "NetworkPolicy", "decode-to-prefill-control")["spec"]["ingress"][0]["ports"]
    node = _loaded(overlay, "prefill").prefill_node
    assert ports["port"] == control_port(node)
    assert ports["endPort"] >= control_port(node) + prod(ranks_of(node.vllm_args)) - 1


def test_files_that_the_configuration_names_are_mounted(overlay: str) -> None:
    """The cluster secret everywhere, the admin token and the API keys on proxies alone."""
    proxy = _loaded(overlay, "proxy")
    wanted = {
        "proxy": {proxy.cluster.secret_file, proxy.proxy.admin_token_file, proxy.proxy.api_keys_file},
        **{role: {_loaded(overlay, role).cluster.secret_file} for role in NODES},
    }

    for component, files in wanted.items():
        template = _template(overlay, component)
        volumes = {each["name"] for each in template["spec"]["volumes"] if "secret" in each}
        folders = {each["mountPath"] for each in container_of(template)["volumeMounts"] if each["name"] in volumes}
        assert {str(file.parent) for file in files if file} == folders


def test_pods_get_the_time_that_their_end_takes(overlay: str) -> None:
    """The hook, the drain, vLLM's own end, and something to spare, before Kubernetes kills.

    A node leaves the name before it drains: answers may be as old as the cluster's DNS keeps them, and what others replace
    goes with the answer after (proxy/nodes/dns.py).
    """
    proxy = _loaded(overlay, "proxy")
    template = _template(overlay, "proxy")
    assert _grace_s(template) >= _hook_s(template) + proxy.serve.stop_timeout_s + SPARE_S

    for role in NODES:
        drain_s = _node(_loaded(overlay, role), role).drain_timeout_s
        template = _template(overlay, role)
        assert _grace_s(template) >= _hook_s(template) + drain_s + SHUTDOWN_TIMEOUT_S + SPARE_S
        assert _hook_s(template) >= COREDNS_CACHE_S + 2 * proxy.proxy.dns_interval_s


def test_nodes_are_started_as_the_command_wants_it(overlay: str) -> None:
    """A command that there is, the mounted file, and flags of vLLM's that a node passes on.

    Both kinds of node read one file: what stands in `transfer` must not differ. The transport is one that carries the KV of the devices.
    """
    volumes = [
        each for role in NODES for each in _template(overlay, role)["spec"]["volumes"] if each["name"] == "config"
    ]
    assert volumes[0] == volumes[1]
    wanted = {"rdma": "rdma", "npu": "ascend"}.get(overlay, "tcp")
    assert _loaded(overlay, "decode").transfer.protocol == wanted
    for component in ("proxy", *NODES):
        template = _template(overlay, component)
        container = container_of(template)
        assert "/etc/baton" in [each["mountPath"] for each in container["volumeMounts"]]
        if overlay == "multi-host" and component in NODES:
            assert container["command"] == ["tini", "--", "/etc/baton-group/group.sh", component]
        else:  # the images' entry point is `baton`, under an init process that hands signals on
            assert "command" not in container
            assert container["args"] == [component, "--config", "/etc/baton/baton.yaml"]
            assert component in COMMANDS
            parsed = command_line().parse_args if component == "proxy" else partial(parse, component)
            assert str(parsed(container["args"][1:])).count("/etc/baton/baton.yaml") == 1
        if component in NODES:
            refuse_owned(_node(_loaded(overlay, component), component).vllm_args)


def test_probes_ask_what_answers(overlay: str) -> None:
    """At the port of the container; a proxy without nodes is alive and not ready, a node says both by its health."""
    for template in pod_templates(render(overlay)).values():
        container = container_of(template)
        asked = {
            name: each["httpGet"] for name, each in container.items() if name.endswith("Probe") and "httpGet" in each
        }
        assert {each["port"] for each in asked.values()} <= {each["name"] for each in container.get("ports", ())}
        paths = {name: each["path"] for name, each in asked.items()}
        if component_of(template) == "proxy":
            assert paths == {"startupProbe": "/health", "readinessProbe": "/ready", "livenessProbe": "/health"}
        elif paths:
            assert paths == dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), HEALTH_PATH)


@pytest.mark.parametrize("role", NODES)
def test_a_node_over_several_hosts_is_started_alike_on_all_of_them(role: str) -> None:
    """The flags that `group.sh` adds make it one node, of whose hosts this is one; further hosts outlive the first one."""
    group = named(render("multi-host"), "LeaderWorkerSet", f"{role}-group")["spec"]["leaderWorkerTemplate"]
    leader, worker = (container_of(group[f"{part}Template"]) for part in ("leader", "worker"))
    assert leader["command"] == worker["command"]
    assert leader["env"] == worker["env"]
    assert leader["lifecycle"] == worker["lifecycle"]
    node = _node(_loaded("multi-host", role), role)

    for index in range(group["size"]):
        added = ("--nnodes", str(group["size"]), "--node-rank", str(index), "--master-addr", "first.example")
        assert hosts_of((*node.vllm_args, *added)) == Hosts(count=2, rank=index, ranks_here=8)
    # All pods of a group are told to stop at once, and the leader's drain needs every rank.
    last = group["workerTemplate"]
    assert _grace_s(last) >= _hook_s(last) + node.drain_timeout_s + OUTLIVE_S
