"""The series about members, read off them at the moment of the scrape: who left shows no more."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.node import State
from proxy.nodes import ROLES, Members


class MemberMetrics(Collector):
    """Shows each member's state and how often it was isolated."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def collect(self) -> Iterator[Metric]:
        """Return what is true now."""
        nodes = GaugeMetricFamily("baton_nodes", "Nodes by state", labels=("role", "state"))
        for role in ROLES:
            states = [node.state for node in self._members.of(role)]
            for state in State:
                nodes.add_metric((role, state), states.count(state))
        yield nodes
        yield from self._each()

    def _each(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "baton_node_state", "1 for the state that a node is in, 0 for the others", labels=("role", "url", "state")
        )
        requests = GaugeMetricFamily("baton_node_requests", "Requests in flight on a node", labels=("role", "url"))
        openings = CounterMetricFamily(
            "baton_breaker_openings", "How often a node's breaker has opened since it joined", labels=("role", "url")
        )
        for node in self._members.all():
            for state in State:
                states.add_metric((node.role, node.url, state), float(node.state is state))
            requests.add_metric((node.role, node.url), node.requests)
            openings.add_metric((node.role, node.url), node.breaker.openings)
        yield from (states, requests, openings)
