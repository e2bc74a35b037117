"""Two nodes in virtual time, chosen by the proxy's own planner, and how many requests meet both SLOs."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

import msgspec

from baton.contracts.kv_transfer import Role
from baton.contracts.node_info import NodeLoad
from baton.loadtest.mock_engine.rules import describe
from baton.loadtest.mock_engine.settings import MODEL
from baton.proxy.nodes.node import Node
from baton.proxy.planning.placement import Estimate, Targets, estimate
from baton.proxy.planning.planner import Planner
from baton.proxy.planning.plans import DisaggregatedPlan
from baton.proxy.request.endpoints import COMPLETIONS
from baton.proxy.request.parse import parse
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy
from baton.proxy.routing.policies import policy_of
from baton.proxy.routing.prefix_index import PrefixIndex
from baton.proxy.routing.router import Router
from benchmarks.goodput.idle import TPOT_TIMES, TTFT_TIMES
from benchmarks.placement.engine import Engine, Hardware, Served, Timeline
from benchmarks.placement.traffic import BEGIN_S, Conversation, Request, plan_traffic

Setup = Literal["plain", "disaggregated", "baton"]
Routing = Callable[[Request], Served]  # chooses the engines of a request

_PROBE_S: Final = 1.0
_NEXT_TURN_S: Final = 0.005  # from the end of the answer before it
_TOKEN_BYTES: Final = 6  # of a prompt's JSON


class Server:
    """An engine, and its node as the proxy knows it."""

    def __init__(self, role: Role, slot: int, hardware: Hardware, timeline: Timeline) -> None:
        self.engine = Engine(hardware, timeline)
        self.node = Node(url=f"http://{slot}", role=role, slot=slot, clock=lambda: timeline.now_s)
        self._info = describe(role, port=1)
        self.probe()

    def probe(self) -> None:
        """Have the node describe itself."""
        node, engine = self.node, self.engine
        load = NodeLoad(
            requests=node.requests,
            prompt_bytes=node.prompt_bytes,
            running=len(engine.streams),
            kv_usage=0.1,
            inter_token_count=engine.inter_token_count,
            inter_token_sum_s=engine.inter_token_sum_s,
        )
        node.describe(msgspec.structs.replace(self._info, load=load))


def plain_servers(servers: Sequence[Server], rng: random.Random) -> Routing:
    """Have the server with less to do serve a request whole; of two alike one is drawn."""

    def route(request: Request) -> Served:
        order = servers if rng.random() < 0.5 else servers[::-1]
        server = min(order, key=lambda each: each.node.load)
        end = server.node.begin(_TOKEN_BYTES * len(request.prompt))
        return Served(request, server.engine, server.engine, on_end=[end])

    return route


def planned(servers: Sequence[Server], targets: Targets | None) -> Routing:
    """Ask Baton's planner, for a prefill and a decode node; without targets a pair serves every request."""
    prefill, decode = (server.node for server in servers)
    engines = {server.node.url: server.engine for server in servers}
    index = PrefixIndex()
    planner = Planner(
        [prefill],
        [decode],
        prefill_router=Router(policy_of("prefix_affinity", index), "prefill"),
        decode_router=Router(policy_of("least_load", index, remembers=True), "decode"),
        local_policy=LocalPrefillPolicy(local_below_bytes=0, max_own_bytes=1 << 20),
        when_no_prefill="decode_local" if targets else "refuse",
        targets=targets,
    )

    def route(request: Request) -> Served:
        """Plan a request, and count it as an attempt of the proxy does."""
        body = {"model": MODEL, "prompt": request.prompt, "stream": True, "max_tokens": request.output_tokens}
        asked = parse(COMPLETIONS, "", [], msgspec.json.encode(body))
        plan, size_bytes = planner.first(asked), asked.prompt_bytes
        if isinstance(plan, DisaggregatedPlan):
            node, expected = plan.prefill, _expect(plan.prefill, plan.work_bytes)
            end_prompt, end = node.begin(size_bytes, new_bytes=plan.work_bytes), plan.decode.begin(size_bytes)
            stream_bytes = size_bytes
        else:
            node, expected = plan.decode, _expect(plan.decode, plan.work_bytes)
            end_prompt, end = node.begin_computing(plan.work_bytes), node.begin(size_bytes, new_bytes=plan.work_bytes)
            stream_bytes = plan.work_bytes or size_bytes
        served = Served(request, engines[node.url], engines[plan.decode.url], on_end=[end])

        def on_first_token() -> None:
            end_prompt()
            served.on_end.append(plan.decode.begin_stream(stream_bytes))
            if expected is not None:
                node.prefill_time.learn(expected.prompt_bytes, served.ttft_s, node.clock())

        served.on_first_token = on_first_token
        return served

    return route


def _expect(node: Node, new_bytes: int) -> Estimate | None:
    """Count a prompt as the node's, and estimate it; as `baton.proxy.handler.attempt` does."""
    if not new_bytes:
        return None
    now_s = node.clock()
    node.prompt_rate.add(new_bytes, now_s)
    node.prompt_share.add(node.prefill_time.predict_s(new_bytes, now_s) or 0.0, now_s)
    return estimate(node, new_bytes)


def serve_all(
    traffic: Sequence[Conversation], setup: Setup, hardware: Hardware, rng: random.Random
) -> Sequence[Served]:
    """Serve conversations on two nodes until all have ended, and return their requests."""
    timeline, ended = Timeline(), list[Served]()
    roles: tuple[Role, Role] = ("decode" if setup == "plain" else "prefill", "decode")
    servers = [Server(role, slot, hardware, timeline) for slot, role in enumerate(roles)]
    targets = Targets() if setup == "baton" else None
    route = plain_servers(servers, rng) if setup == "plain" else planned(servers, targets)

    def begin_conversation(turns: Sequence[Request]) -> None:
        served = route(turns[0])
        served.on_end.append(partial(end_turn, served, turns[1:]))
        served.prefill.add_prompt(served)

    def end_turn(served: Served, later: Sequence[Request]) -> None:
        ended.append(served)
        if later:
            timeline.add(timeline.now_s + _NEXT_TURN_S, partial(begin_conversation, later))

    def probe() -> None:
        for server in servers:
            server.probe()
        if not timeline.is_empty():
            timeline.add(timeline.now_s + _PROBE_S, probe)

    for begin_s, turns in traffic:
        timeline.add(begin_s, partial(begin_conversation, turns))
    timeline.add(0.0, probe)
    timeline.run()
    return ended


class Outcome(NamedTuple):
    """How many requests of a run met both SLOs."""

    good: int
    requests: int


def simulate(setup: Setup, mix: str, hardware: Hardware, *, utilisation: float, seconds: float, seed: int) -> Outcome:
    """Simulate a mix whose conversations begin in so many seconds, at a utilisation of two plain `cpu` nodes."""
    rng = random.Random(seed)
    traffic = plan_traffic(mix, utilisation, seconds, rng)
    counted = [served for served in serve_all(traffic, setup, hardware, rng) if served.arrived_s >= BEGIN_S]
    return Outcome(sum(_is_good(served, hardware) for served in counted), len(counted))


def _is_good(served: Served, hardware: Hardware) -> bool:
    ttft_slo_s = TTFT_TIMES * hardware.idle_ttft_s(len(served.request.prompt))
    return served.ttft_s <= ttft_slo_s and served.tpot_s <= TPOT_TIMES * hardware.idle_tpot_s
