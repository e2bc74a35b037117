"""When a node is to change its role, and which: loads in, orders out. Pure; the clock is given."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from baton.contracts.configuration.schema import RolesConfig
from baton.contracts.kv_transfer import Role
from baton.deploy.roles.fleet import Member

HOUR_S: Final = 3600.0
_OTHER: Final[dict[Role, Role]] = {"prefill": "decode", "decode": "prefill"}


class Split(NamedTuple):
    """The work of both roles, and the nodes that share it; all in nodes."""

    prefill_load: float
    decode_load: float
    prefill_nodes: int
    decode_nodes: int

    @property
    def worst(self) -> float:
        return max(self.prefill_load / self.prefill_nodes, self.decode_load / self.decode_nodes)

    def with_one_more(self, role: Role) -> "Split":
        more = 1 if role == "prefill" else -1
        return self._replace(prefill_nodes=self.prefill_nodes + more, decode_nodes=self.decode_nodes - more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A node that serves in another role from now on, and why."""

    url: str
    role: Role
    model: str
    now: Split
    then: Split

    @property
    def gain(self) -> float:
        return self.now.worst - self.then.worst


class Decider:
    """Decides from the nodes' load, as often as it is given, which node changes its role."""

    def __init__(self, rules: RolesConfig) -> None:
        self._rules = rules
        self._streaks: dict[tuple[str, Role], int] = {}  # looks in a row at which a model wanted another node of a role
        self._changed_s: deque[float] = deque()

    def choose_change(self, now_s: float, members: Sequence[Member], unchanged_s: float = inf) -> Change | None:
        """Return the change to be ordered now, which counts as made.

        Args:
            now_s: monotonic.
            members: the nodes that are ready; none: nothing is known.
            unchanged_s: how long ago a role was changed, by whatever order.
        """
        changes = {model: self._change(members, model) for model in sorted({member.model for member in members})}
        wanted = {(model, change.role): change for model, change in changes.items() if change is not None}
        self._streaks = {key: self._streaks.get(key, 0) + 1 for key in wanted}
        lasting = [change for key, change in wanted.items() if self._streaks[key] >= self._rules.looks]
        if not lasting or not self._may_change(now_s, unchanged_s):
            return None
        self._streaks.clear()
        self._changed_s.append(now_s)
        return max(lasting, key=lambda change: change.gain)

    def _may_change(self, now_s: float, unchanged_s: float) -> bool:
        while self._changed_s and now_s - self._changed_s[0] >= max(HOUR_S, self._rules.cooldown_s):
            self._changed_s.popleft()
        own_s = now_s - self._changed_s[-1] if self._changed_s else inf
        most = self._rules.max_changes_per_hour or inf
        return min(own_s, unchanged_s) >= self._rules.cooldown_s and len(self._changed_s) < most

    def _change(self, members: Sequence[Member], model: str) -> Change | None:
        """Return the change that helps a model's nodes most; None if none is worth it."""
        nodes: dict[Role, list[Member]] = {
            role: [member for member in members if member.model == model and member.role == role] for role in _OTHER
        }
        now = split(nodes["prefill"], nodes["decode"])
        if now is None or now.worst < self._rules.least_load:
            return None
        changes = [
            Change(url=node.url, role=role, model=model, now=now, then=now.with_one_more(role))
            for role in _OTHER
            if len(nodes[_OTHER[role]]) > 1 and (node := _one_for(role, nodes[_OTHER[role]])) is not None
        ]
        best = max(changes, key=lambda change: change.gain, default=None)
        return best if best is not None and best.gain >= self._rules.margin * now.worst else None


def split(prefill: Sequence[Member], decode: Sequence[Member]) -> Split | None:
    """Return the work of all these nodes; None if it is not known, or a role has no node."""
    if not prefill or not decode:
        return None
    prompts = _whole([node.prefill_load for node in prefill], prefill)
    tokens = _whole([node.decode_load for node in decode], decode)
    if prompts is None or tokens is None:
        return None
    prompts += sum(node.prefill_load or 0.0 for node in decode)
    tokens += sum(node.decode_load or 0.0 for node in prefill)
    return Split(prompts, tokens, len(prefill), len(decode))


def _whole(loads: Sequence[float | None], nodes: Sequence[Member]) -> float | None:
    """Add up the loads of a role's own work; a node of which nothing is known counts as the others do."""
    found = [load for load in loads if load is not None]
    if not found:
        return None if any(node.requests for node in nodes) else 0.0
    return sum(found) / len(found) * len(loads)


def _one_for(role: Role, nodes: Sequence[Member]) -> Member | None:
    """Choose the node to change: one that was started in that role, then the one with the least to do."""
    able = [node for node in nodes if node.both_ways]
    return min(able, key=lambda node: (node.started_as != role, node.requests, node.url), default=None)
