"""One role's policy at work: the planner asks it for one of the nodes that may be used now; it is told of those that come and go."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from baton.contracts.kv_transfer import Role
from baton.proxy.nodes.node import Node
from baton.proxy.routing.policies import Candidates, Policy, Work

_KEPT: Final = 64  # sets of nodes that are kept in order: a few models, a few that are away


class Choice(NamedTuple):
    """A node, and the work that a request would be for it."""

    node: Node
    new_bytes: int  # of the prompt, that it is not believed to have
    work_bytes: int  # what the prompt takes there, in bytes that are computed
    cached_bytes: int = 0  # that it is believed to have


def choice_of(node: Node, new_bytes: int, cached_bytes: int = 0) -> Choice:
    """Return the choice of a node that has so much of a prompt.

    Its last token is always computed, so that it is at least one byte of work.
    """
    work_bytes = max(1, new_bytes + round(node.prefill_time.cached_cost * cached_bytes))
    return Choice(node, new_bytes, work_bytes, cached_bytes)


class Router:
    """Chooses among nodes of one role; a listener of the members."""

    def __init__(self, policy: Policy, role: Role | None = None) -> None:
        """`role`: changes of other nodes are not heard; None: there are none."""
        self._policy = policy
        self._role = role
        self._turn = 0
        self._candidates: dict[tuple[Node, ...], Candidates] = {}
        self._recent: dict[int, tuple[tuple[Node, ...], Candidates]] = {}  # by the identity of what was asked with

    @property
    def reads_prompts(self) -> bool:
        return self._policy.reads_prompts

    def choose(self, work: Work, nodes: Sequence[Node]) -> Node:
        return self.choice(work, nodes).node

    def choice(self, work: Work, nodes: Sequence[Node]) -> Choice:
        """Choose the node that gets the work, one of at least one."""
        found = self.preview(work, nodes)
        self.give(work, found)
        return found

    def give(self, work: Work, choice: Choice) -> None:
        """Note that the node of a preview gets the work."""
        self._policy.given(work, choice.node, choice.new_bytes)

    def preview(self, work: Work, nodes: Sequence[Node]) -> Choice:
        if len(nodes) > 1:
            self._turn += 1
            work = work._replace(turn=self._turn)
            node = self._policy.choose(work, self._in_order(nodes))
        else:
            node = nodes[0]
        cached_bytes = self._policy.seen_bytes(work, node)
        return choice_of(node, work.prompt_bytes - cached_bytes, cached_bytes)

    def left(self, node: Node) -> None:
        if node.role == self._role or self._role is None:
            self._policy.forget(node.slot)
            self._candidates.clear()
            self._recent.clear()

    def restarted(self, node: Node) -> None:
        if node.role == self._role or self._role is None:
            self._policy.forget(node.slot)

    def _in_order(self, nodes: Sequence[Node]) -> Candidates:
        if (known := self._recent.get(id(nodes))) is not None and known[0] is nodes:
            return known[1]
        same = tuple(nodes)
        if (made := self._candidates.get(same)) is None:
            if len(self._candidates) == _KEPT:
                self._candidates.clear()
            made = self._candidates[same] = Candidates(same)
        if nodes is same:  # a list may change
            if len(self._recent) == _KEPT:
                self._recent.clear()
            self._recent[id(nodes)] = nodes, made
        return made
