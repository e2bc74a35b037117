from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.configuration.schema import BatonConfig, NodeConfig, ProxyConfig, ServeConfig, TransferConfig
from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.stack import Member, Stack, Surroundings, clashes, model_of, plan

AROUND = Surroundings(file=None, secret_file=Path("/run/secret"))


def test_every_process_gets_ports_addresses_and_the_secret() -> None:
    """Nodes count up from their base ports, and the proxy is told all their addresses."""
    stack = planned(serve=ServeConfig(prefill=2, decode=2))

    assert [member.name for member in stack.members] == ["proxy", "prefill-0", "prefill-1", "decode-0", "decode-1"]
    assert [member.url for member in stack.nodes] == [f"http://127.0.0.1:{port}" for port in (8100, 8101, 8200, 8201)]
    assert words_after(stack, "proxy", "--prefill", 2) == ["http://127.0.0.1:8100", "http://127.0.0.1:8101"]
    assert words_after(stack, "proxy", "--decode", 2) == ["http://127.0.0.1:8200", "http://127.0.0.1:8201"]
    assert all("/run/secret" in member.argv for member in stack.members)
    assert words_after(stack, "prefill-1", "--control-port") == ["9101"]
    assert "--control-port" not in member_of(stack, "decode-0").argv


def test_control_ports_count_up_from_the_one_configured() -> None:
    """Two prefill nodes cannot share the configured control port; each has one for every rank. So has a decode node that sends."""
    node = NodeConfig(control_port=7000, vllm_args=("-tp", "2"))

    stack = planned(prefill_node=node, serve=ServeConfig(prefill=2))

    ports = [[listener.port for listener in node.listeners] for node in stack.nodes if node.name != "decode-0"]
    assert ports == [[8100, 7000, 7001], [8101, 7002, 7003]]
    assert words_after(stack, "prefill-1", "--control-port") == ["7002"]
    stack = planned(transfer=TransferConfig(both_ways=True), serve=ServeConfig(decode=2))
    assert words_after(stack, "decode-1", "--control-port") == ["9201"]
    assert [listener.flag for listener in member_of(stack, "decode-1").listeners] == ["--decode-base-port"] * 2


def test_what_each_process_is_told() -> None:
    """All read the same file; flags that are not the launcher's go to each node, the admin token to the proxy.

    Without a token of the launcher's the configuration's own counts.
    """
    around = replace(AROUND, file=Path("/etc/baton.yaml"), admin_token_file=Path("/run/admin.token"))
    stack = plan(BatonConfig(), replace(around, node_flags=("--dtype", "float32")))

    assert all(words_after(stack, member.name, "--config") == ["/etc/baton.yaml"] for member in stack.members)
    assert all(node.argv[-2:] == ("--dtype", "float32") for node in stack.nodes)
    assert "--dtype" not in stack.proxy.argv
    assert words_after(stack, "proxy", "--admin-token-file") == ["/run/admin.token"]
    assert not any("--admin-token-file" in node.argv for node in stack.nodes)
    assert "--admin-token-file" not in plan(BatonConfig(), AROUND).proxy.argv


@pytest.mark.parametrize(
    ("settings", "url", "ready_path"),
    [
        ({}, "http://127.0.0.1:8000", "/ready"),
        ({"tls_cert_file": Path("cert")}, "https://127.0.0.1:8000", "/ready"),
        ({"tls_cert_file": Path("cert"), "tls_client_ca_file": Path("ca")}, "https://127.0.0.1:8000", ""),
    ],
)
def test_a_proxy_behind_tls_is_asked_as_far_as_it_lets_us(settings: dict[str, Any], url: str, ready_path: str) -> None:
    """The launcher has no certificate to show to a proxy that wants one from its clients."""
    proxy = planned(proxy=ProxyConfig(**settings)).proxy

    assert (proxy.url, proxy.ready_path) == (url, ready_path)


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [("", "", (str(WEIGHTS), str(WEIGHTS))), ("a", "", ("a", "a")), ("", "b", ("b", "b")), ("a", "b", ("a", "b"))],
)
def test_one_model_is_enough(prefill: str, decode: str, expected: tuple[str, str]) -> None:
    """A model named for one role serves both; none at all is the embedded one."""
    config = BatonConfig(prefill_node=NodeConfig(model=prefill), decode_node=NodeConfig(model=decode))

    assert (model_of(config, "prefill"), model_of(config, "decode")) == expected


def test_the_embedded_model_has_a_name() -> None:
    """Clients do not have to type the path of a package; a name that the user gives stands."""
    named = plan(BatonConfig(), replace(AROUND, node_flags=("--served-model-name", "tiny")))
    other = planned(prefill_node=NodeConfig(model="org/model"))

    assert words_after(planned(), "decode-0", "--served-model-name") == ["baton-embedded"]
    assert words_after(named, "decode-0", "--served-model-name") == ["tiny"]
    assert "--served-model-name" not in member_of(other, "decode-0").argv


@pytest.mark.parametrize(
    ("cores", "prefill", "decode", "expected"),
    [
        ((0,), 1, 1, [(), ()]),
        ((), 1, 1, [(), ()]),
        ((0, 1), 1, 1, [(0,), (1,)]),
        ((0, 1), 2, 2, [(0,), (0,), (1,), (1,)]),
        ((0, 1, 2, 3), 1, 1, [(0, 1), (2, 3)]),
        ((0, 1, 2, 3), 2, 1, [(0,), (1,), (2, 3)]),
        ((0, 1, 2), 1, 1, [(0,), (1, 2)]),
        ((0, 1), 0, 1, [(0, 1)]),
        ((2, 3, 4, 5, 6, 7, 8, 9), 1, 2, [(2, 3, 4, 5), (6, 7), (8, 9)]),
    ],
)
def test_prefill_and_decode_never_share_a_core(
    cores: tuple[int, ...], prefill: int, decode: int, expected: list[tuple[int, ...]]
) -> None:
    """Each role has half of the cores; nodes of a role share them out, or share one where there are too few."""
    stack = plan(BatonConfig(serve=ServeConfig(prefill=prefill, decode=decode)), replace(AROUND, cores=cores))

    assert [node.cpus for node in stack.nodes] == expected


def test_ports_that_meet_are_named_with_both_owners() -> None:
    """Too many nodes run into the other role's ports; the sentence says how to move them."""
    stack = planned(serve=ServeConfig(prefill=2, decode_base_port=8101))

    assert clashes(stack) == ["prefill-1 and decode-0 would both listen on port 8101: see --decode-base-port"]
    assert clashes(planned()) == []


def test_the_nodes_ports_follow_the_proxys() -> None:
    """So that a second stack beside the first needs one flag."""
    stack = planned(proxy=ProxyConfig(port=9000), serve=ServeConfig(prefill=2, decode=2))
    given = planned(proxy=ProxyConfig(port=9000), serve=ServeConfig(prefill_base_port=8100, decode_base_port=8200))

    ports = [[listener.port for listener in node.listeners] for node in stack.nodes]
    assert ports == [[9100, 10100], [9101, 10101], [9200], [9201]]
    assert [node.listeners[0].port for node in given.nodes] == [8100, 8200]


def planned(**sections: object) -> Stack:
    """Plan a configuration that differs from the default in some sections."""
    return plan(replace(BatonConfig(), **sections), AROUND)  # type: ignore[arg-type]  # sections by name


def member_of(stack: Stack, name: str) -> Member:
    return next(member for member in stack.members if member.name == name)


def words_after(stack: Stack, name: str, flag: str, count: int = 1) -> list[str]:
    """Return the words behind a flag in a member's arguments."""
    argv = list(member_of(stack, name).argv)
    at = argv.index(flag) + 1
    return argv[at : at + count]
