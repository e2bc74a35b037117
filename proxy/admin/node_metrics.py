"""The series about members, made from what is seen of them at the moment of the scrape: who left shows no more."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from baton.proxy.nodes.latency_histogram import GAP_BOUNDS_S, LEG_BOUNDS_S, RATIO_BOUNDS, Tally
from baton.proxy.nodes.node import State
from baton.proxy.nodes.registry import ROLES
from baton.proxy.nodes.views import NodeView

OPENINGS: Final = "baton_breaker_openings"
_NODE: Final = ("role", "url")


def states(nodes: Sequence[NodeView]) -> Iterator[Metric]:
    found = GaugeMetricFamily("baton_nodes", "Nodes by state", labels=("role", "state"))
    for role in ROLES:
        seen = [node.state for node in nodes if node.role == role]
        for state in State:
            found.add_metric((role, state), seen.count(state))
    in_state = GaugeMetricFamily(
        "baton_node_state", "1 for the state that a node is in, 0 for the others", labels=(*_NODE, "state")
    )
    requests = GaugeMetricFamily("baton_node_requests", "Requests in flight on a node", labels=_NODE)
    others = GaugeMetricFamily(
        "baton_node_other_requests", "Requests that a node has from others, as it said last", labels=_NODE
    )
    for node in nodes:
        for state in State:
            in_state.add_metric((node.role, node.url, state), float(node.state == state))
        requests.add_metric((node.role, node.url), node.requests)
        others.add_metric((node.role, node.url), node.other_requests)
    yield from (found, in_state, requests, others)


def openings(nodes: Sequence[NodeView]) -> Metric:
    found = CounterMetricFamily(OPENINGS, "How often a node's breaker has opened since it joined", labels=_NODE)
    for node in nodes:
        found.add_metric((node.role, node.url), node.breaker_openings)
    return found


def times(tallies: Iterable[Tally]) -> Iterator[Metric]:
    legs = HistogramMetricFamily(
        "baton_leg_seconds",
        "From sending a leg that succeeded to: the whole answer (answered), a stream's first bytes (first_bytes), "
        "the last byte handed on (ended)",
        labels=(*_NODE, "until"),
    )
    handover = HistogramMetricFamily(
        "baton_handover_seconds",
        "From the prefill node's answer to a stream's first bytes; 0 if these came first",
        labels=_NODE,
    )
    gaps = HistogramMetricFamily(
        "baton_inter_token_latency_seconds", "Between two chunks of a stream, as they are written", labels=_NODE
    )
    prediction = HistogramMetricFamily(
        "baton_prefill_prediction_ratio",
        "Time until a prompt's first token on the node that computed it ÷ what was predicted",
        labels=_NODE,
    )
    inter_token_prediction = HistogramMetricFamily(
        "baton_inter_token_prediction_ratio",
        "Mean time between tokens that a node reports, less what prompts took ÷ what was predicted for as many sequences",
        labels=_NODE,
    )
    for each in tallies:
        for until in ("answered", "first_bytes", "ended"):
            each.add_to(legs, until, LEG_BOUNDS_S, until)
        each.add_to(handover, "handover", LEG_BOUNDS_S)
        each.add_to(gaps, "gaps", GAP_BOUNDS_S)
        each.add_to(prediction, "prediction", RATIO_BOUNDS)
        each.add_to(inter_token_prediction, "inter_token_prediction", RATIO_BOUNDS)
    yield from (legs, handover, gaps, prediction, inter_token_prediction)
