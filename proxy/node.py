"""One member: what was probed of it, what the proxy has in flight on it, whether it may be used. No I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from contracts.node_info import Fingerprint, NodeInfo, differences

Role = Literal["prefill", "decode"]


class State(StrEnum):
    """What is known of a node; only READY nodes get work."""

    UNKNOWN = "unknown"  # never answered a probe yet
    READY = "ready"
    UNREADY = "unready"  # answers, but may not be used: starting, draining, wrong role, no control address
    DOWN = "down"  # does not answer


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """A configured node. Probes and failures write it, choices read it."""

    url: str
    role: Role
    state: State = State.UNKNOWN
    reason: str = "not probed yet"  # why it is not READY
    info: NodeInfo | None = None  # the last description that it gave
    requests: int = 0  # in flight through this proxy
    prompt_bytes: int = 0  # of those requests

    @property
    def fingerprint(self) -> Fingerprint | None:
        """What KV it makes or takes, as far as it said."""
        return self.info.fingerprint if self.info else None

    def serves(self, model: str) -> bool:
        """Return whether it said that it serves this model."""
        return self.info is not None and model in self.info.served_models

    def describe(self, info: NodeInfo) -> None:
        """Take over a probe's answer."""
        self.info = info
        self.reason = unusable_because(self.role, info) or ""
        self.state = State.UNREADY if self.reason else State.READY

    def lose(self, state: State, reason: str) -> None:
        """Take it out of use until a probe succeeds."""
        self.state, self.reason = state, reason

    @contextmanager
    def carrying(self, prompt_bytes: int) -> Iterator[None]:
        """Count one request as in flight."""
        self.requests += 1
        self.prompt_bytes += prompt_bytes
        try:
            yield
        finally:
            self.requests -= 1
            self.prompt_bytes -= prompt_bytes


def unusable_because(role: Role, info: NodeInfo) -> str | None:
    """Say why a node that answers may not be used; None if it may."""
    if info.role != role:
        return f"it is configured as a {role} node but says that it is a {info.role} node"
    if info.state != "ready":
        return f"it is {info.state}"
    if role == "prefill" and not info.control_addresses:
        return "it announces no control address"
    return None


def unpairable_because(prefill: Node, decode: Node) -> str | None:
    """Say why no KV may go from one node to the other; None if it may."""
    mine, theirs = prefill.fingerprint, decode.fingerprint
    if mine is None or theirs is None:
        return "a node has not announced its fingerprint"
    return "; ".join(differences(mine, theirs)) or None
