"""What nodes say of themselves when they are asked to compare pool, scheduler and ledger, and of the KV they verified."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from tests.chaos.ledger import NodeState
from tests.e2e.stack import Server


async def audit(servers: Iterable[Server]) -> list[str]:
    """Ask `/baton/integrity` of every server and name what was found."""
    asked = await asyncio.gather(*(asyncio.to_thread(_ask, server) for server in servers))
    return [problem for found in asked for problem in found]


def findings_of(name: str, answer: Mapping[str, Any]) -> list[str]:
    """Name what a node has found, now or before it idled at some time."""
    if answer["ok"] and not answer["integrity_findings"]:
        return []
    return [f"{name}: {answer['integrity_findings']} integrity findings so far, now {answer['findings']}"]


def damages_of(nodes: Mapping[str, NodeState]) -> list[str]:
    """Name decode nodes on which KV was not what had been sent, or could not be compared."""
    return [
        f"{name}: {count} transfers {what}"
        for name, node in nodes.items()
        for what in ("mismatched", "unverifiable")
        if (count := node.totals.get(what, 0))
    ]


def verified_by(nodes: Mapping[str, NodeState]) -> int:
    """Count the transfers whose KV was compared and found equal."""
    return sum(node.totals.get("verified", 0) for node in nodes.values())


def _ask(server: Server) -> list[str]:
    try:
        return findings_of(server.name, server.integrity())
    except httpx.HTTPError as exc:
        return [f"{server.name} was not checked: {exc!r}"]
