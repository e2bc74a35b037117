"""Baton's series on the `/metrics` that vLLM serves.

A scrape first fetches the connector's snapshots and hands them, through the request's context, to a collector in the
registry that vLLM renders. So a gauge shows what is true now, whether steps run or not, and a connector that does not
answer shows no series but `baton_connector_up 0` and, where its process is there, `baton_connector_silent 1`. Why this
is not vLLM's own mechanism for connectors: `docs/decisions/0003-timings.md`.
"""

from collections.abc import Sequence
from contextvars import ContextVar

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from baton.contracts.kv_transfer import Role
from baton.kv_connector.metrics import families
from baton.kv_connector.telemetry.refusals import Refusals
from baton.model_runner.metrics import families as runner_families
from baton.node.connector.connector_channel import ConnectorClient
from baton.node.errors import ConnectorSilentError, NoAnswerError

_scraped: ContextVar[Sequence[Metric]] = ContextVar("_scraped", default=())


class ConnectorMetrics(Collector):
    """Shows what the connector counts."""

    def __init__(
        self,
        role: Role,
        connector: ConnectorClient,
        refusals: Refusals,
        registry: CollectorRegistry = REGISTRY,
        *,
        both_ways: bool = False,
    ) -> None:
        self._role = role
        self._both_ways = both_ways
        self._connector = connector
        self._refusals = refusals
        self._registry = registry
        self._registered = False

    def start(self) -> None:
        if not self._registered:
            self._registry.register(self)
            self._registered = True

    def stop(self) -> None:
        if self._registered:
            self._registry.unregister(self)
            self._registered = False

    async def scrape(self) -> None:
        """Fetch what `collect` shows in this task, and in what it starts."""
        found: list[Metric] = []
        is_silent = False
        try:
            snapshots = await self._connector.both()
            found = families(self._role, *snapshots, self._refusals.snapshot(), both_ways=self._both_ways)
        except (NoAnswerError, msgspec.ValidationError) as exc:
            is_silent = isinstance(exc, ConnectorSilentError)
        _scraped.set([*found, *_health(is_up=bool(found), is_silent=is_silent), *await self._of_runner()])

    async def _of_runner(self) -> list[Metric]:
        """What the worker tells of its tokens; it is silent where the connector is."""
        try:
            return runner_families(await self._connector.runner())
        except (NoAnswerError, msgspec.ValidationError):
            return []

    def describe(self) -> Sequence[Metric]:
        return [
            *families(self._role, {}, {}, both_ways=self._both_ways),
            *_health(is_up=False, is_silent=False),
            *runner_families({}),
        ]

    def collect(self) -> Sequence[Metric]:
        """What this task's scrape has fetched; nothing for anybody else who reads the registry."""
        return _scraped.get()


def _health(*, is_up: bool, is_silent: bool) -> Sequence[Metric]:
    silent = "Whether the connector did not answer this scrape although its process is there"
    return (
        GaugeMetricFamily("baton_connector_up", "Whether the connector answered this scrape", float(is_up)),
        GaugeMetricFamily("baton_connector_silent", silent, float(is_silent)),
    )
