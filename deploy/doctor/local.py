"""Looks at this machine with what a node looks at before it starts."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Final, Literal

from baton.contracts.configuration.load import ConfigError, choose_file, load
from baton.contracts.configuration.schema import BatonConfig, ProxyConfig
from baton.contracts.kv_transfer import Role
from baton.contracts.probe import MIB, Place, Push, Receive
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.fit import diagnose_machine
from baton.deploy.doctor.report import Examination
from baton.deploy.own_url import ask_own, ask_own_proxy
from baton.kv_connector.engine.mooncake_environment import prepare_environment
from baton.kv_connector.errors import ConnectorConfigError
from baton.node.errors import NodeError, StartRefusedError
from baton.node.http.probe_engines import ProbeEngines
from baton.node.machine import machine
from baton.node.roles import node_config, roles_of
from baton.node.startup import checks
from baton.node.startup.addresses import resolve
from baton.node.startup.arguments import control_port
from baton.node.versions import versions

HERE: Final = "this machine"
LOOPBACK: Final = "127.0.0.1"
SELF_TEST_S: Final = 30.0
HEALTH_TIMEOUT_S: Final = 2.0
Wanted = Literal["prefill", "decode", "proxy"]
Ask = Callable[[], tuple[int, bytes]]  # the server that is to have a port: its status and body


def examine(config_file: Path | None, secret_file: Path | None, role: Wanted | None) -> Examination:
    """Look at this machine; what is to run here (`role`) is checked as before its start, without it whatever there is."""
    findings: list[Finding] = []
    try:
        overrides = {"cluster.secret_file": secret_file} if secret_file else {}
        config = load(overrides, os.environ, choose_file(config_file)).config
    except ConfigError as exc:
        findings += [Finding(code="configuration", where=HERE, what=line) for line in str(exc).splitlines()]
        config = BatonConfig()
    roles: Sequence[Role] = [] if role == "proxy" else [role] if role else ["prefill", "decode"]
    place = Place(host=LOOPBACK, protocol=config.transfer.protocol)
    found = machine(place.host, place.protocol)
    installed = versions()
    findings += diagnose_machine(found, HERE)
    named = config.cluster.secret_file
    if role is not None or named is not None:
        findings += _refusal("secret-file", HERE, lambda: checks.check_secret(named))
    if roles:
        if "vllm" not in installed:
            findings.append(Finding(code="vllm-missing", where=HERE, what="vLLM is not installed"))
        findings += _engine(place)
        for each in roles:
            findings += _node(each, config)
    if role in (None, "proxy"):
        findings += _proxy(config.proxy)
    return Examination(findings=findings, versions=installed, machine=found)


def _engine(place: Place) -> Iterator[Finding]:
    library = list(_refusal("library", HERE, checks.check_transfer_engine))
    yield from library
    try:
        prepare_environment(place.host, place.protocol, dict(os.environ))
    except ConnectorConfigError as exc:
        yield Finding(code="engine-environment", where=HERE, what=str(exc))
        return
    if library:
        return
    if reason := asyncio.run(_push_to_itself(place)):
        yield Finding(code="transfer-engine", where=HERE, what=reason)


async def _push_to_itself(place: Place) -> str:
    engines = ProbeEngines(place)
    try:
        target = await engines.receive(Receive(seconds=SELF_TEST_S))
        pushed = await engines.push(Push(session=target.session, address=target.address, size_bytes=MIB, idle_s=0))
    except NodeError as exc:
        return str(exc)
    finally:
        await engines.stop()
    return pushed.problem


def _node(role: Role, config: BatonConfig) -> Iterator[Finding]:
    node, where = node_config(role, config), f"the {role} node here"
    if node.model:  # else it may come with the command line
        yield from _refusal("model", where, lambda: checks.check_model(node.model))
    try:
        listen_host = resolve(node).listen_host
    except StartRefusedError as exc:
        yield Finding(code="address", where=where, what=str(exc))
        return
    ask = partial(ask_own, listen_host, node.port, "/health", HEALTH_TIMEOUT_S)
    taken = list(_port(listen_host, node.port, f"{role} node", ask))
    yield from taken
    if not taken and "prefill" in roles_of(role, config.transfer) and not _serves(ask):
        yield from _refusal("port", where, lambda: checks.check_port(listen_host, control_port(node), "control"))


def _proxy(proxy: ProxyConfig) -> Iterator[Finding]:
    yield from _port(proxy.host, proxy.port, "proxy", partial(ask_own_proxy, proxy, "/health", HEALTH_TIMEOUT_S))


def _port(host: str, port: int, of: str, ask: Ask) -> Iterator[Finding]:
    """A port that is taken is well if a server that works has it."""
    for finding in _refusal("port", f"the {of} here", lambda: checks.check_port(host, port, "HTTP")):
        if not _serves(ask):
            yield finding


def _serves(ask: Ask) -> bool:
    try:
        return ask()[0] == HTTPStatus.OK
    except (OSError, ValueError, HTTPException):
        return False


def _refusal(code: str, where: str, check: Callable[[], object]) -> Iterator[Finding]:
    """A check's refusal as a finding; what it says after the last colon is its own fix, if it is an order."""
    try:
        check()
    except StartRefusedError as exc:
        what, _, advice = str(exc).partition(": ")
        is_advice = advice.startswith(("run ", "install ", "name ", "set "))
        yield Finding(
            code=code,
            where=where,
            what=what if is_advice else str(exc),
            fix_here=f"{advice[0].upper()}{advice[1:]}." if is_advice else "",
        )
