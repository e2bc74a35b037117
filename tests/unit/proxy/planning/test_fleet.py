"""What is kept of the fleet is what a look at every node would find."""

import math
from random import Random
from typing import Literal

import pytest

from baton.contracts.node_info import NodeInfo
from baton.proxy.errors import ProxyError
from baton.proxy.nodes.circuit_breaker import Breaker
from baton.proxy.nodes.node import Node, Revision, State
from baton.proxy.planning.fleet import MAX_MODELS, Fleet
from baton.proxy.planning.retry_policy import NOTHING_YET
from tests.unit.proxy.members import BFLOAT16, MODEL, info

PATIENCE_S = 5.0
MODELS = [MODEL, "adapter", "nobody's"]


class Members:
    def __init__(self, size: int) -> None:
        self.now_s = 1.0
        self.revision = Revision()
        self.prefill = [self.node("prefill") for _ in range(size)]
        self.decode = [self.node("decode") for _ in range(size)]

    def node(self, role: Literal["prefill", "decode"]) -> Node:
        made = Node(url="http://n", role=role, revision=self.revision, clock=self.clock)
        made.breaker = Breaker(clock=self.clock, on_change=lambda *_: self.changed())
        made.describe(info(role))
        return made

    def clock(self) -> float:
        return self.now_s

    def changed(self) -> None:
        """As `NodeRegistry` counts."""
        self.revision.number += 1

    def fleet(self, *, keeps: bool = True) -> Fleet:
        revision = self.revision if keeps else None
        return Fleet(self.prefill, self.decode, revision=revision, patience_s=PATIENCE_S, clock=self.clock)

    def happen(self, random_: Random) -> None:
        """Let something happen to a node."""
        node = random_.choice(self.prefill + self.decode)
        match random_.randrange(9):
            case 0 | 1:
                node.describe(described(node.role, random_))
            case 2:
                node.lose(random_.choice([State.DOWN, State.SILENT]), "it is tested")
            case 3:
                node.draining = not node.draining
                self.changed()
            case 4:
                for _ in range(5):
                    node.breaker.failed("it is tested")
            case 5:
                end = node.begin(10)
                if random_.random() < 0.5:
                    node.breaker.succeeded()
                end()
            case 6:
                of = self.prefill if node.role == "prefill" else self.decode
                of.remove(node)
                of.append(self.node(node.role))
                self.changed()
            case _:
                self.now_s += random_.choice([0.1, 1.0, 3.0])


def described(role: Literal["prefill", "decode"], random_: Random) -> NodeInfo:
    state = random_.choice(["ready", "ready", "ready", "silent", "draining", "failed"])
    served = random_.choice([[MODEL], [MODEL, "adapter"]])
    if random_.random() < 0.2:
        return info(role, state=state, served_models=served, fingerprint=BFLOAT16)
    return info(role, state=state, served_models=served)


def found(fleet: Fleet, model: str) -> object:
    try:
        usable = fleet.usable(model)
    except ProxyError as exc:
        return str(exc)
    makers = [usable.prefill_for(node) for node in usable.decode]
    return usable.prefill, usable.decode, usable.matching, makers


@pytest.mark.parametrize("seed", range(2))
def test_what_is_kept_is_what_a_look_would_find(seed: int) -> None:
    random_, members = Random(seed), Members(3)
    kept, looked = members.fleet(), members.fleet(keeps=False)
    seen = set()
    for _ in range(1500):
        members.happen(random_)
        for model in MODELS:
            said = found(kept, model)
            assert said == found(looked, model)
            seen.add(said if isinstance(said, str) else "nodes")

    assert len(seen) >= 3, "refusals too"


def test_nothing_is_looked_at_twice_while_nothing_changes() -> None:
    """Loads and descriptions that say the same are no change; a request that has failed somewhere is looked for by itself."""
    members = Members(2)
    fleet = members.fleet()
    first = fleet.usable(MODEL)
    assert first.until_s == math.inf
    for node in members.prefill + members.decode:
        node.describe(info(node.role))
        node.begin(1000)

    assert fleet.usable(MODEL) is first
    lost = fleet.usable(MODEL, NOTHING_YET.without(members.decode[0]))
    assert [*lost.decode] == members.decode[1:]
    assert fleet.usable(MODEL) is first


def test_a_change_by_time_alone_is_kept_until_it_is_due() -> None:
    members = Members(2)
    fleet = members.fleet()
    for _ in range(5):
        members.decode[0].breaker.failed("it is tested")
    without = fleet.usable(MODEL)
    assert [*without.decode] == members.decode[1:]
    assert members.now_s < without.until_s < math.inf
    assert fleet.usable(MODEL) is without

    members.now_s = without.until_s

    assert [*fleet.usable(MODEL).decode] == members.decode


def test_what_is_kept_of_a_silent_prefill_node_ends_with_the_patience() -> None:
    members = Members(2)
    fleet = members.fleet()
    for node, at_s in zip(members.prefill, (1.0, 2.0), strict=True):
        members.now_s = at_s
        node.lose(State.SILENT, "it is tested")

    for members.now_s, until_s, silent in ((2.0, 1.0 + PATIENCE_S, 2), (6.5, 2.0 + PATIENCE_S, 1), (7.0, math.inf, 0)):
        found = fleet.usable(MODEL)
        assert (found.until_s, len(found.prefill)) == (until_s, silent)


def test_models_are_kept_within_a_bound() -> None:
    """Nodes may serve thousands of adapters."""
    members = Members(1)
    names = [f"m{i}" for i in range(MAX_MODELS + 1)]
    for node in members.prefill + members.decode:
        node.describe(info(node.role, served_models=names))
    fleet = members.fleet()
    first, second, *_ = [fleet.usable(name) for name in names[:-1]]
    assert fleet.usable(names[0]) is first
    assert fleet.usable(names[1]) is second
    fleet.usable(names[-1])

    assert len(fleet._kept) <= MAX_MODELS
