from typing import Any

import pytest

from baton.contracts.kv_transfer import Role
from baton.deploy.roles.fleet import FOLLOWS_S, Order, SilentError, check_whole, differences, members_of, unchanged_s
from baton.proxy.admin.node_views import view
from baton.proxy.nodes.views import AdminState, NodeView, WorkerView
from tests.unit.proxy.members import node


def seen(role: Role, url: str, **changes: Any) -> NodeView:
    return view(node(role, url)).model_copy(update={"state": "ready", "both_ways": True, **changes})


def state(*nodes: NodeView, pid: int | None = 1, unchanged_s: float | None = None) -> AdminState:
    return AdminState(
        version="",
        uptime_s=1.0,
        settings={},
        workers=[WorkerView(worker=0, pid=pid, uptime_s=1.0, in_flight=0, requests=0, retries_left=0, admission=None)],
        nodes=[*nodes],
        sources=[],
        removed=[],
        leaving=[],
        roles_unchanged_s=unchanged_s,
    )


def test_prompts_add_up_over_proxies_and_tokens_are_the_nodes_own() -> None:
    told = {"a": (0.3, 0.5, 2), "b": (0.4, 0.6, 1)}
    states = {
        name: state(
            seen("prefill", "http://p", prefill_load=prompts),
            seen("decode", "http://d", decode_load=tokens, requests=requests),
        )
        for name, (prompts, tokens, requests) in told.items()
    }
    prefill, decode = members_of(states)

    assert prefill.prefill_load == pytest.approx(0.7)
    assert prefill.decode_load is None
    assert (decode.decode_load, decode.requests) == (0.6, 3)


def test_only_nodes_that_are_ready_for_all_proxies_count() -> None:
    """Neither drained nor silent ones, nor one that a proxy does not know."""
    nodes = [seen("decode", f"http://{name}") for name in ("fine", "drained", "silent", "unknown")]
    others = [
        seen("decode", "http://fine"),
        seen("decode", "http://drained", state="draining"),
        seen("decode", "http://silent", state="silent"),
    ]

    assert [member.url for member in members_of({"a": state(*nodes), "b": state(*others)})] == ["http://fine"]


def test_workers_that_do_not_answer_or_differ_are_waited_for() -> None:
    """Without one the load is unknown; while one has carried out an order and another has not, so is which role was ordered."""
    for silent in (state(pid=None), state(seen("prefill", "http://n"), seen("decode", "http://n"))):
        with pytest.raises(SilentError):
            check_whole({"a": state(), "b": silent})


def test_proxies_follow_the_one_with_the_last_change() -> None:
    """A proxy that was started again has the roles of its configuration; a node that the others do not know keeps its own."""
    one = state(seen("prefill", "http://n"), seen("decode", "http://d"), unchanged_s=9.0)
    begun = state(seen("decode", "http://n"), seen("decode", "http://d"), seen("decode", "http://new"))
    older = state(seen("decode", "http://n"), seen("decode", "http://d"), unchanged_s=99.0)
    states = {"begun": begun, "one": one, "older": older}

    ago_s = 9.0 + FOLLOWS_S
    assert differences(states) == [Order(each, "http://n", "prefill", ago_s) for each in ("begun", "older")]
    assert unchanged_s(states) == 9.0
    assert differences({"one": one}) == []
