"""Who is a member: slots, listeners, and what is left of a node that left."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock, call

import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.node_info import Adapter
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.nodes.discovery import SourceError
from baton.proxy.nodes.node import State
from baton.proxy.nodes.overrides import AdminOverrides
from baton.proxy.nodes.registry import NodeRegistry, configured_sources
from baton.proxy.nodes.views import LeavingView
from tests.support.cluster import until_true
from tests.unit.proxy.members import BFLOAT16, info

SECRET = ClusterSecret(b"a secret for tests only")
TWO = ("http://d", "http://e")
UNREACHABLE = Mock(get=Mock(side_effect=UpstreamError(FailureKind.CONNECT, "it cannot be reached")))


@asynccontextmanager
async def members(*, ready: bool = False, **settings: Any) -> AsyncIterator[NodeRegistry]:
    """Of whom none answers a probe, though they may have said that they are ready."""
    config = ProxyConfig(**{"prefill": ("http://p",), "decode": ("http://d",), "probe_interval_s": 60.0, **settings})
    made = NodeRegistry(config, SECRET, UNREACHABLE)
    await made.start()
    if ready:
        await until_true(lambda: all(node.state is State.DOWN for node in made.all()))  # the first probes are over
        for node in made.all():
            node.describe(info(node.role))
    try:
        yield made
    finally:
        await made.stop()


async def test_every_member_is_waited_for_until_it_has_been_probed_once() -> None:
    async with members(decode=TWO) as found:
        found.decode[0].lose(State.DOWN, "a leg failed")
        await found.probed(20.0)

        assert {node.state for node in found.all()} == {State.DOWN}


async def test_every_member_has_a_slot_of_its_own() -> None:
    """The smallest that is free, over both roles. The lists change in place: the planner holds them."""
    async with members(prefill=("http://p", "http://q/")) as found:
        held = found.decode
        added = found.add("decode", "http://e")

        assert [(node.url, node.slot) for node in found.all()] == [
            ("http://p", 0),
            ("http://q", 1),
            ("http://d", 2),
            ("http://e", 3),
        ]
        found.remove(found.decode[0])
        assert held == [added]


async def test_a_node_that_leaves_keeps_its_slot_until_its_requests_have_ended() -> None:
    """Two nodes with one slot would be counted as one; it is shown so long, and listeners are told that it left."""
    async with members() as found:
        listener = Mock()
        found.listen(listener)
        leaving = found.prefill[0]
        end = leaving.begin(1)
        found.remove(leaving)
        early, during = found.add("prefill", "http://q"), found.leaving()
        end()
        late = found.add("prefill", "http://r")

        assert (leaving.slot, early.slot, late.slot) == (0, 2, 0)
        assert during == [LeavingView(role="prefill", url="http://p", slot=0, requests=1)]
        assert found.leaving() == []
        assert listener.mock_calls == [call.left(leaving), call.restarted(late)]  # requests may have been noted since


async def test_nothing_of_a_node_that_left_goes_on() -> None:
    """Its probe task ends, and a late failure of its requests wakes no probe; a node that was not configured is not kept out."""
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
        assert found.state()["removed"] == [{"role": "decode", "url": "http://d"}]


async def test_stopping_does_not_wait_for_requests_on_a_node_that_left() -> None:
    async with members() as found:
        leaving = found.prefill[0]
        leaving.begin(1)
        found.remove(leaving)
        await asyncio.sleep(0)  # its probe goes on
        async with asyncio.timeout(10):
            await found.stop()

        assert len(asyncio.all_tasks()) == 1


async def test_a_url_that_two_sources_name_is_one_member() -> None:
    async with members(decode=()) as found:
        found._take("decode", "dns://d:1", ("http://a", "http://b"))
        found.adopt(AdminOverrides(added={"decode": ("http://b", "http://c")}))
        assert [node.url for node in found.decode] == ["http://a", "http://b", "http://c"]

        found._take("decode", "dns://d:1", ())

        assert [node.url for node in found.decode] == ["http://b", "http://c"]


async def test_an_evacuation_that_another_worker_was_told_of() -> None:
    """It has the same time everywhere; one that could not be written down is taken back. A node is not drained by it."""
    async with members() as found, members() as other:
        before = found.orders()
        node, theirs = found.decode[0], other.decode[0]
        node.moves.results["moved"] = 3
        found.evacuate(node)
        other.adopt(found.orders())

        assert 0 < node.evacuated_at == theirs.evacuated_at
        assert not node.moves.results
        assert (node.draining, node.state) == (False, theirs.state)

        other.drain(other.prefill[0])  # one order does not take back another
        found.adopt(other.orders())
        assert node.evacuated_at == theirs.evacuated_at

        found.adopt(before)
        assert node.evacuated_at == 0


async def test_evacuations_are_remembered_for_a_day() -> None:
    async with members(decode=TWO) as found:
        day_s, now = 86_400.0, time.monotonic()
        found.adopt(AdminOverrides(evacuated={"http://d": now - day_s + 600, "http://gone": now - day_s - 600}))
        found.evacuate(found.decode[1])

        assert found.orders().evacuated.keys() == {*TWO}


async def test_a_node_that_changes_its_role_does_so_for_every_worker() -> None:
    """Its streams are to leave wherever they are; and it can change back."""
    async with members(decode=TWO) as told, members(decode=TWO) as other:
        left = other.decode[1]
        assert told.roles_unchanged_s is None
        told.change_role(told.decode[1], "prefill")
        other.adopt(told.orders())

        assert other.roles_unchanged_s is not None
        assert 0 <= other.roles_unchanged_s < 60
        for found in (told, other):
            assert [node.url for node in found.prefill] == ["http://p", "http://e"]
            assert [node.url for node in found.decode] == ["http://d"]
            assert [node.takes_either_role for node in found.prefill] == [False, True]
        assert left.evacuated_at > 0

        told.change_role(told.prefill[1], "decode")
        other.adopt(told.orders())

        for found in (told, other):
            assert [[node.url for node in nodes] for nodes in (found.prefill, found.decode)] == [
                ["http://p"],
                ["http://d", "http://e"],
            ]


async def test_a_role_was_last_changed_when_the_first_proxy_was_told() -> None:
    async with members(decode=TWO) as found:
        unchanged_s = []
        for ago_s in (500.0, 0.0, 500.0):
            node = found.find("http://e")[0]
            found.change_role(node, "prefill" if node.role == "decode" else "decode", ago_s=ago_s)
            unchanged_s.append(found.roles_unchanged_s)

    assert unchanged_s == [pytest.approx(500, abs=60), pytest.approx(0, abs=60), pytest.approx(0, abs=60)]


async def test_what_was_learned_of_a_node_in_a_role_is_kept_for_its_return() -> None:
    """Of the same process: one that was started again begins from the start."""
    async with members(decode=TWO) as found:
        node = found.decode[1]
        node.describe(info("decode", incarnation="1"))
        learned = node.inter_token
        found.change_role(node, "prefill")
        found.change_role(found.prefill[1], "decode")
        back = found.decode[1]

        assert back is not node
        assert back.probed is State.UNKNOWN
        back.describe(info("decode", incarnation="1"))
        assert back.inter_token is learned
        back.describe(info("decode", incarnation="2"))
        assert back.inter_token is not learned


async def test_a_removed_node_can_be_added_again() -> None:
    """It begins without its breaker's failures. A member that is added again is only taken back into use."""
    async with members() as found:
        first = found.prefill[0]
        found.remove(first)
        assert found.state()["removed"] == [{"role": "prefill", "url": "http://p"}]

        second = found.add("prefill", "http://p")

        assert second is not first
        assert found.state()["removed"] == []
        assert [source["urls"] for source in found.state()["sources"] if source["name"] == "admin"] == [[], []]
        found.drain(second)
        assert found.add("prefill", "http://p") is second
        assert not second.draining


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
    async with members(ready=True, breaker_failures=1, **settings) as found:
        bad = found.of("decode" if role == "decode" else "prefill")[0]
        found.report(bad, FailureKind.STATUS)

        assert (bad.state is State.ISOLATED) is isolated


async def test_the_last_node_of_a_model_is_not_isolated() -> None:
    async with members(ready=True, breaker_failures=1, decode=TWO) as found:
        found.decode[1].describe(info("decode", served_models=["another"]))
        found.report(found.decode[0], FailureKind.STATUS)

        assert found.decode[0].state is State.READY


async def test_a_node_that_drains_is_not_judged() -> None:
    """It refuses with 503 because it was told to stop."""
    async with members(ready=True, breaker_failures=1) as found:
        node = found.prefill[0]
        node.describe(info("prefill", state="draining"))
        for kind in (FailureKind.STATUS, FailureKind.DISCONNECT):
            found.report(node, kind)

        assert (node.state, node.breaker.admits) == (State.DRAINING, True)


async def test_what_becomes_of_a_node_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with members(ready=True, breaker_failures=1, prefill=(), decode=TWO) as found:
        found.report(found.decode[0], FailureKind.STATUS)

    told = {record.message: vars(record) for record in reversed(caplog.records)}
    node = {"url": "http://d", "role": "decode"}
    lost = {"levelname": "INFO", **node, "state": "down", "reason": "a probe failed: it cannot be reached"}
    assert told["node changed state"].items() >= lost.items()
    opened = {"levelname": "WARNING", **node, "breaker": "open", "reason": "1 requests in a row failed: status"}
    assert told["breaker changed state"].items() >= opened.items()


def test_addresses_and_names_of_a_role_are_told_apart() -> None:
    """Each counts once."""
    urls = ("http://a/", "dns://p:1", "http://b", "http://a", "dns://p:1")
    assert [source.describe() for source in configured_sources(urls, 1.0)] == [
        {"name": "configuration", "urls": ["http://a", "http://b"]},
        {"name": "dns://p:1", "urls": [], "problem": ""},
    ]


async def test_a_name_that_cannot_be_understood_is_refused() -> None:
    with pytest.raises(SourceError, match="dns://prefill"):
        NodeRegistry(ProxyConfig(prefill=("dns://prefill",)), SECRET, UNREACHABLE)


@pytest.mark.parametrize(
    ("kind", "probed", "failed"),
    [
        (FailureKind.TIMEOUT, State.SILENT, True),
        (FailureKind.CONNECT, State.DOWN, True),
        (FailureKind.DISCONNECT, State.DOWN, True),
        (FailureKind.STATUS, State.READY, True),
        (FailureKind.EMPTY, State.READY, True),
        *((kind, State.READY, False) for kind in ("refused", "busy", "own", "stalled", "drained", "unfetched")),
    ],
)
async def test_what_a_failed_leg_says_of_its_node(kind: str, probed: State, *, failed: bool) -> None:
    """Without an answer in time it is silent and not down, until the next probe, which is made now.

    A client's mistake, a busy node and what is none of its faults are not held against it.
    """
    async with members(ready=True, breaker_failures=1, decode=TWO) as made:
        node = made.decode[0]
        made.report(node, FailureKind(kind))

        assert (node.probed, node.breaker.openings) == (probed, failed)


async def test_a_request_that_its_node_has_judged_ends_a_row_of_failures() -> None:
    async with members(ready=True, breaker_failures=2, decode=TWO) as made:
        for kind in ("status", "refused", "status", "busy", "status"):
            made.report(made.decode[0], FailureKind(kind))

        assert made.decode[0].breaker.openings == 0


async def test_every_change_of_what_members_may_be_used_for_is_counted() -> None:
    """Plans are made from what was found at the last one."""
    async with members(ready=True, breaker_failures=1, decode=TWO) as found:
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
            lambda: node.describe(info("decode", served_models=["m", "adapter"], fingerprint=BFLOAT16, adapters=[])),
            lambda: node.describe(info("decode", served_models=["m", "adapter"], adapters=adapters)),
            lambda: node.describe(info("decode", served_models=["m"], adapters=adapters)),
            lambda: found.add("decode", "http://f"),
            lambda: found.remove(found.decode[-1]),
        ]
        for change in changes:
            change()
            counted.append(found.revision.number)

    assert all(before < after for before, after in itertools.pairwise(counted)), counted
