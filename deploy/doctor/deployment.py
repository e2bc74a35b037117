"""Looks at a running deployment: asks the proxy who is there, each node what it is, and pairs of nodes for a transfer."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import msgspec

from baton.contracts.kv_transfer import Role
from baton.contracts.secret import ClusterSecret
from baton.deploy.doctor import fit, links, machine
from baton.deploy.doctor.asking import AskError, ProbeClient, Unlike
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.examination import Examination
from baton.deploy.doctor.fit import Known
from baton.deploy.doctor.links import Tried, Wanted
from baton.deploy.doctor.trial import try_pair

READY: Final = "/ready"
# What keeps the proxy from using a node, seen from here.
UNUSED: Final = ("node-unreachable", "cluster-secret", "no-node", "wrong-role", "not-ready", "draining")
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """Whom to look at."""

    proxy: str = ""
    prefill: Sequence[str] = ()
    decode: Sequence[str] = ()


class _Listed(msgspec.Struct):
    """A node as the proxy's `/ready` lists it."""

    url: str
    role: Role
    state: str
    reason: str


class _Ready(msgspec.Struct):
    nodes: list[_Listed]


async def examine(targets: Targets, secret: ClusterSecret, wanted: Wanted, idle_s: float) -> Examination:
    """Look at all nodes and at every pair of them."""
    async with httpx.AsyncClient(trust_env=False) as http:
        client = ProbeClient(http, secret)
        findings, listed = await _listed(client, targets)
        seen = await asyncio.gather(*(_look(client, each.url, each.role) for each in listed))
        nodes = [node for node, _ in seen]
        for node, problems in seen:
            findings += [*problems, *_diagnose(node)]
        findings += _disagreements(listed, findings)
        findings += fit.diagnose_versions(nodes)
        tried = await _tried(client, nodes, findings, idle_s)
        findings += links.diagnose(tried, wanted)
    return Examination(findings=findings, nodes=nodes, tried=tried)


async def _listed(client: ProbeClient, targets: Targets) -> tuple[list[Finding], list[_Listed]]:
    """Who is to be looked at: the proxy's members, and who was named."""
    findings: list[Finding] = []
    listed: list[_Listed] = []
    if targets.proxy:
        try:
            listed += (await client.get(targets.proxy + READY, _Ready, statuses=(200, 503), is_open=True)).nodes
        except AskError as exc:
            findings.append(Finding(code="proxy-unreachable", where=targets.proxy, what=str(exc)))
    for role in ROLES:
        urls = targets.prefill if role == "prefill" else targets.decode
        known = {each.url for each in listed if each.role == role}
        listed += [_Listed(url, role, "", "") for url in dict.fromkeys(urls) if url not in known]
    for role in ROLES:
        if not findings and not any(each.role == role for each in listed):
            where = targets.proxy or "this deployment"
            findings.append(Finding(code="no-nodes", where=where, what=f"there is no {role} node"))
    return findings, listed


async def _look(client: ProbeClient, url: str, role: Role) -> tuple[Known, list[Finding]]:
    """Ask one node for everything that it says of itself."""
    try:
        info = await client.info(url)
        found, engines = await asyncio.gather(client.machine(url), client.engines(url))
    except AskError as exc:
        code = {Unlike.SECRET: "cluster-secret", Unlike.OTHER: "no-node"}.get(exc.unlike, "node-unreachable")
        return Known(url=url, role=role), [Finding(code=code, where=url, what=str(exc))]
    return Known(url=url, role=role, info=info, machine=found, engines=engines), []


def _diagnose(node: Known) -> list[Finding]:
    findings = list(fit.diagnose_node(node))
    if node.info is not None and node.machine is not None:
        findings += machine.diagnose(node.machine, node.url, fit.kv_bytes(node.info) or None)
    return findings


def _disagreements(listed: Sequence[_Listed], findings: Sequence[Finding]) -> list[Finding]:
    """Nodes that are well as seen from here, and not as the proxy sees them."""
    told = {finding.where for finding in findings if finding.code in (*UNUSED, "silent")}
    return [
        Finding(
            code=each.state if each.state in ("draining", "silent") else "proxy-sees-another",
            where=each.url,
            what=f"the proxy has it as {each.state}: {each.reason}",
        )
        for each in listed
        if each.state not in ("", "ready") and each.url not in told
    ]


async def _tried(client: ProbeClient, nodes: Sequence[Known], findings: list[Finding], idle_s: float) -> list[Tried]:
    """Judge every pair, and try those that could reach each other."""
    usable: dict[str, list[Known]] = {
        role: [node for node in nodes if node.role == role and node.usable] for role in ROLES
    }
    all_tried: list[Tried] = []
    for turn in links.rounds(usable["prefill"], usable["decode"]):
        trials: list[Any] = []
        for prefill, decode in turn:
            found = list(fit.diagnose_pair(prefill, decode))
            findings += found
            if not any(finding.code == "loopback-advertised" for finding in found):
                trials.append(try_pair(client, prefill, decode, idle_s))
        all_tried += await asyncio.gather(*trials)
    return all_tried
