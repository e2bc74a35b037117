"""Planners for tests, and what their nodes, requests and failures have in common."""

from typing import Any, Literal

from baton.contracts.kv_transfer import PROTOCOL_VERSION
from baton.proxy.errors import FailureKind
from baton.proxy.nodes.node import Node
from baton.proxy.planning.outcome import DecodeFailed, PrefillFailed
from baton.proxy.planning.placement import Targets
from baton.proxy.planning.planner import Planner
from baton.proxy.planning.plans import DisaggregatedPlan
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy
from baton.proxy.routing.policies import LeastLoad, Policy, PrefixAffinity
from baton.proxy.routing.router import Router
from tests.unit.proxy.members import request

OTHER_PROTOCOL = {"protocol": str(PROTOCOL_VERSION + 1)}
WIDE: dict[str, Any] = {"control_addresses": ["tcp://p:1", "tcp://p:2"], "data_parallel_size": 2}
SENDS: dict[str, Any] = {"both_ways": True, "control_addresses": ["tcp://d:1"], "first_tokens": "3-alike"}
SCORED = {"echo": True, "logprobs": 1}
P_FAILED = PrefillFailed(FailureKind.CONNECT, "it cannot be reached")
D_FAILED = DecodeFailed(FailureKind.CONNECT, "it cannot be reached")


def planner(
    prefill: list[Node],
    decode: list[Node],
    when_no_prefill: Literal["decode_local", "refuse"] = "decode_local",
    *,
    decode_policy: Policy | None = None,
    local_below_bytes: int = 0,
    max_own_bytes: int = 1 << 20,
    prefill_patience_s: float = 5.0,
    targets: Targets | None = Targets(),  # noqa: B008  # immutable
) -> Planner:
    return Planner(
        prefill,
        decode,
        prefill_router=Router(PrefixAffinity()),
        decode_router=Router(decode_policy or LeastLoad()),
        local_policy=LocalPrefillPolicy(local_below_bytes=local_below_bytes, max_own_bytes=max_own_bytes),
        when_no_prefill=when_no_prefill,
        key_header="x-session-id",
        prefill_patience_s=prefill_patience_s,
        targets=targets,
    )


def pair(made: Planner) -> DisaggregatedPlan:
    chosen = made.first(request())
    assert isinstance(chosen, DisaggregatedPlan)
    return chosen
