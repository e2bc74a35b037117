"""Who is a member: slots, listeners, and what is left of a node that left."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.node_info import Adapter
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes.discovery import SourceError
from baton.proxy.nodes.node import Node, State
from baton.proxy.nodes.registry import NodeRegistry
from tests.support.cluster import until_true
from tests.unit.proxy.members import BFLOAT16, info

SECRET = ClusterSecret(b"a secret for tests only")


class NoUpstream:
    """Nodes that nobody can reach."""

    def get(self, *_: Any, **__: Any) -> None:
        """Refuse."""
        raise UpstreamError(FailureKind.CONNECT, "it cannot be reached")


class Heard:
    """A listener that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, int]] = []

    def left(self, node: Node) -> None:
        self.told.append(("left", node.url, node.slot))

    def restarted(self, node: Node) -> None:
        self.told.append(("restarted", node.url, node.slot))


@asynccontextmanager
async def members(**settings: Any) -> AsyncIterator[NodeRegistry]:
    """Members of which none answers."""
    config = ProxyConfig(**{"prefill": ("http://p",), "decode": ("http://d",), "probe_interval_s": 60.0, **settings})
    made = NodeRegistry(config, SECRET, cast("Upstream", NoUpstream()))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_every_member_has_a_slot_of_its_own() -> None:
    """The smallest that is free, over both roles."""
    async with members(prefill=("http://p", "http://q/")) as found:
        added = found.add("decode", "http://e")

        assert [(node.url, node.slot) for node in found.all()] == [
            ("http://p", 0),
            ("http://q", 1),
            ("http://d", 2),
            ("http://e", 3),
        ]
        assert added is found.decode[1]


async def test_a_slot_is_free_again_when_its_node_has_left_and_is_idle() -> None:
    """Until then whoever counts by slot would count two nodes as one."""
    async with members() as found:
        leaving = found.prefill[0]
        end = leaving.begin(1)
        found.remove(leaving)
        early = found.add("prefill", "http://q")
        end()
        late = found.add("prefill", "http://r")

        assert (leaving.slot, early.slot, late.slot) == (0, 2, 0)


async def test_a_node_that_leaves_with_requests_is_shown_until_they_ended() -> None:
    """An operator waits for that before stopping it."""
    async with members() as found:
        leaving = found.decode[0]
        end = leaving.begin(1)
        found.remove(leaving)
        during = found.state()["leaving"]
        end()

        assert during == [{"role": "decode", "url": "http://d", "slot": 1, "requests": 1}]
        assert found.state()["leaving"] == []


async def test_lists_change_in_place() -> None:
    """Whoever chooses among members holds these lists."""
    async with members() as found:
        held = found.decode
        found.add("decode", "http://e")
        found.remove(found.decode[0])

        assert [node.url for node in held] == ["http://e"]


async def test_listeners_hear_of_members_that_leave() -> None:
    """What they remember of a slot is of no use to the next member that has it."""
    async with members() as found:
        heard = Heard()
        found.listen(heard)
        found.add("decode", "http://e")
        found.remove(found.prefill[0])

        assert heard.told == [("left", "http://p", 0)]


async def test_nothing_of_a_node_that_left_goes_on() -> None:
    """Its probe task ends, and a late failure of its requests wakes nobody."""
    async with members() as found:
        before = len(asyncio.all_tasks())
        for number in range(20):
            found.remove(found.add("decode", f"http://{number}"))
        gone = found.decode[0]
        found.remove(gone)
        await until_true(lambda: len(asyncio.all_tasks()) < before)
        found.report(gone, FailureKind.DISCONNECT)

        assert len(asyncio.all_tasks()) == before - 1
        assert not found.decode


async def test_a_removed_node_can_be_added_again() -> None:
    """It begins anew: what was held against it is forgotten."""
    async with members() as found:
        first = found.prefill[0]
        found.remove(first)
        assert found.state()["removed"] == [{"role": "prefill", "url": "http://p"}]

        second = found.add("prefill", "http://p")

        assert second is not first
        assert found.state()["removed"] == []
        assert [source["urls"] for source in found.state()["sources"] if source["name"] == "admin"] == [[], []]


async def test_adding_a_member_again_takes_it_back_into_use() -> None:
    """It is the same node, with what it carries."""
    async with members() as found:
        node = found.decode[0]
        found.drain(node)

        assert found.add("decode", "http://d") is node
        assert not node.draining


@pytest.mark.parametrize(
    ("role", "settings", "isolated"),
    [
        ("decode", {}, False),
        ("prefill", {"when_no_prefill": "refuse"}, False),
        ("prefill", {}, True),
        ("decode", {"decode": ("http://d", "http://e")}, True),
    ],
)
async def test_the_last_node_that_requests_need_is_not_isolated(
    role: str, settings: dict[str, Any], *, isolated: bool
) -> None:
    """A prefill node can be done without, unless the operator says otherwise."""
    async with members(breaker_failures=1, **settings) as found:
        await until_true(lambda: all(node.state is State.DOWN for node in found.all()))  # the first probes are over
        for node in found.all():
            node.describe(info(node.role))
        bad = found.of("decode" if role == "decode" else "prefill")[0]
        found.report(bad, FailureKind.STATUS)

        assert (bad.state is State.ISOLATED) is isolated


async def test_a_node_that_drains_is_not_judged() -> None:
    """It refuses with 503 because it was told to stop."""
    async with members(breaker_failures=1) as found:
        node = found.prefill[0]
        await until_true(lambda: node.state is State.DOWN)  # the first probe is over
        node.describe(info("prefill", state="draining"))
        found.report(node, FailureKind.STATUS)

        assert node.breaker.admits


async def test_a_name_that_cannot_be_understood_is_refused() -> None:
    """Before anything is started."""
    with pytest.raises(SourceError, match="dns://prefill"):
        NodeRegistry(ProxyConfig(prefill=("dns://prefill",)), SECRET, cast("Upstream", NoUpstream()))


@pytest.mark.parametrize(
    ("kind", "state"),
    [(FailureKind.TIMEOUT, State.SILENT), (FailureKind.CONNECT, State.DOWN), (FailureKind.STATUS, State.READY)],
)
async def test_a_leg_without_an_answer_in_time_makes_a_node_silent_and_not_down(
    kind: FailureKind, state: State
) -> None:
    """Until the next probe, which is made now."""
    async with members() as made:
        node = made.decode[0]
        node.describe(info("decode"))
        made.report(node, kind)

        assert node.state is state


async def test_every_change_of_what_members_may_be_used_for_is_counted() -> None:
    """Plans are made from what was found at the last one."""
    async with members(breaker_failures=1, decode=("http://d", "http://e")) as found:
        await until_true(lambda: all(node.state is State.DOWN for node in found.all()))
        for node in found.all():
            node.describe(info(node.role))
        node, counted = found.decode[0], [found.revision.number]
        adapters = [Adapter(name="adapter", root="", parent="m")]
        changes: list[Callable[[], Any]] = [
            lambda: found.drain(node),
            lambda: found.drain(node, draining=False),
            lambda: found.report(node, FailureKind.STATUS),
            lambda: found.report(node, FailureKind.DISCONNECT),
            lambda: node.describe(info("decode")),
            lambda: node.describe(info("decode", served_models=["m", "adapter"])),
            lambda: node.describe(info("decode", served_models=["m", "adapter"], fingerprint=BFLOAT16)),
            lambda: node.describe(info("decode", served_models=["m", "adapter"], adapters=adapters)),
            lambda: node.describe(info("decode", served_models=["m"], adapters=adapters)),
            lambda: found.add("decode", "http://f"),
            lambda: found.remove(found.decode[-1]),
        ]
        for change in changes:
            change()
            counted.append(found.revision.number)

    assert all(before < after for before, after in itertools.pairwise(counted)), counted
