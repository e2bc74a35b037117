"""What several workers show together."""

from typing import Any

from baton.contracts.node_info import NodeLoad
from baton.proxy.admin.node_views import view
from baton.proxy.dashboard.snapshot import DashboardSnapshot, NodeShown, joined
from tests.unit.proxy import members


def node(requests: int, state: str = "ready") -> NodeShown:
    seen = view(members.node("decode")).model_copy(update={"requests": requests, "state": state})
    load = NodeLoad(requests=3, prompt_bytes=0, running=3, waiting=0, kv_usage=0.25)
    return NodeShown(view=seen, first=(2, 0.5), gaps=(10, 1.0), load=load)


def seen(worker: int, *nodes: NodeShown, **more: Any) -> DashboardSnapshot:
    fields: dict[str, Any] = {
        "leaving": [],
        "inside": 1,
        "waiting": 2,
        "in_flight": 3,
        "counters": {"requests": {"local 200": 4.0}},
        "ttft": {"0.1": 1.0, "+Inf": 2.0, "sum": 0.3},
        "gaps": [1, 2, 3],
        "gaps_sum_s": 0.5,
        "requests": {"live": [{"at": float(worker), "id": f"w{worker}"}], "live_total": 9, "recent": []},
    }
    return DashboardSnapshot(worker=worker, nodes=list(nodes), **{**fields, **more})


def test_workers_add_up() -> None:
    """Counts are sums, a node's state is the worst that any worker sees, requests stand in the order of their arrival."""
    body = joined([seen(1, node(2)), seen(0, node(5, "down"))], workers=3)

    (shown,) = body["nodes"]
    assert (shown["requests"], shown["state"], shown["first"], shown["gaps"]) == (7, "down", [4, 1.0], [20, 2.0])
    assert (body["in_flight"], body["waiting"], body["gaps"]) == (6, 4, [2, 4, 6])
    assert body["counters"]["requests"] == {"local 200": 8.0}
    assert body["ttft"] == {"0.1": 2.0, "+Inf": 4.0, "sum": 0.6}
    assert [request["id"] for request in body["requests"]["live"]] == ["w0", "w1"]
    assert (body["requests"]["live_total"], body["workers"]) == (18, {"answering": 2, "of": 3})


def test_a_worker_without_decode_nodes_does_not_hide_the_others_gaps() -> None:
    """One that has just started knows no node yet."""
    body = joined([seen(0, gaps=[]), seen(1, node(1))], workers=2)

    assert body["gaps"] == [1, 2, 3]
