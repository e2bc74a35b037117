"""What several proxies say of their nodes, as one view; where they differ, the orders that make them alike. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from baton.contracts.kv_transfer import Role
from baton.proxy.admin.node_views import known
from baton.proxy.nodes.views import AdminState


class RolesError(Exception):
    """Why a look orders nothing: one sentence, without what differs from look to look."""


class SilentError(RolesError):
    """What is known of the nodes is not whole, or not fresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node that is ready for all proxies."""

    url: str
    role: Role
    model: str
    started_as: Role | None
    both_ways: bool
    prefill_load: float | None  # in nodes; None: not known
    decode_load: float | None
    requests: int


FOLLOWS_S: Final = 5.0  # by which a change counts as older at a proxy that follows another one


class Order(NamedTuple):
    """One node's role, at one proxy."""

    proxy: str
    url: str
    role: Role
    ago_s: float = 0.0  # when another proxy was given it


def members_of(states: Mapping[str, AdminState]) -> list[Member]:
    """Return the nodes that all proxies, by URL, take for ready, with the load of all."""
    views = [{node.url: node for node in state.nodes} for state in states.values()]
    found = []
    for url in views[0]:
        seen = [nodes[url] for nodes in views if url in nodes]
        if len(seen) < len(views) or any(node.state != "ready" or not node.models for node in seen):
            continue
        found.append(
            Member(
                url=url,
                role=seen[0].role,
                model=seen[0].models[0],
                started_as=seen[0].started_as,
                both_ways=all(node.both_ways for node in seen),
                prefill_load=known(sum, (node.prefill_load for node in seen)),
                decode_load=known(max, (node.decode_load for node in seen)),
                requests=sum(node.requests for node in seen),
            )
        )
    return found


def check_whole(states: Mapping[str, AdminState]) -> None:
    """Check that all workers have answered and agree. Raises `SilentError`: some load or role is not known."""
    for state in states.values():
        if any(worker.pid is None for worker in state.workers):
            raise SilentError("a worker of a proxy does not answer")
        if len({node.url for node in state.nodes}) < len(state.nodes):
            raise SilentError("a node has both roles at a proxy, or its workers differ")


def unchanged_s(states: Mapping[str, AdminState]) -> float:
    return min(map(_unchanged_s, states.values()))


def differences(states: Mapping[str, AdminState]) -> list[Order]:
    """Return what makes all proxies have the roles of the one that had the last change: it has that also once others have followed in part."""
    last = min(states.values(), key=_unchanged_s)
    wanted, ago_s = {node.url: node.role for node in last.nodes}, (last.roles_unchanged_s or 0.0) + FOLLOWS_S
    return [
        Order(proxy, node.url, wanted[node.url], ago_s)
        for proxy, state in states.items()
        for node in state.nodes
        if wanted.get(node.url, node.role) != node.role
    ]


def _unchanged_s(state: AdminState) -> float:
    return inf if state.roles_unchanged_s is None else state.roles_unchanged_s
