"""Baton's series on vLLM's `/metrics`."""

import asyncio
import logging
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from baton.contracts.kv_transfer import Role
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.node.connector.connector_channel import ConnectorClient, Snapshots
from baton.node.errors import ConnectorFailedError, ConnectorSilentError, NodeError
from baton.node.http.metrics import ConnectorMetrics


class FakeConnector:
    def __init__(self, scheduler: dict[str, Any] | None) -> None:
        self.scheduler = scheduler
        self.problem: NodeError = ConnectorSilentError("no snapshot")

    async def both(self) -> Snapshots:
        if self.scheduler is None:
            raise self.problem
        return Snapshots(self.scheduler, {})

    async def runner(self) -> dict[str, Any]:
        if self.scheduler is None:
            raise ConnectorSilentError("no report")
        return {"runner": "CpuRunner", "tokens": {"slots": 4, "slots_in_use": 1}, "syncs": {"a.py:1": 2}}


def refusals() -> Refusals:
    """One request without the token has been turned away."""
    counted = Refusals(logging.getLogger(__name__))
    counted.count(Refused.BAD_TOKEN)
    return counted


def metrics_of(
    scheduler: dict[str, Any] | None, role: Role = "decode"
) -> tuple[ConnectorMetrics, FakeConnector, CollectorRegistry]:
    connector, registry = FakeConnector(scheduler), CollectorRegistry()
    metrics = ConnectorMetrics(role, cast("ConnectorClient", connector), refusals(), registry)
    metrics.start()
    return metrics, connector, registry


async def scraped(metrics: ConnectorMetrics, registry: CollectorRegistry) -> str:
    """What a scrape shows, in a task of its own as every request has."""

    async def request() -> str:
        await metrics.scrape()
        return await asyncio.to_thread(lambda: generate_latest(registry).decode())

    return await asyncio.create_task(request())


async def test_a_scrape_shows_what_is_true_now() -> None:
    """A gauge falls without any step in between."""
    metrics, connector, registry = metrics_of({"reservations": 3})
    assert "baton_reservations 3.0" in await scraped(metrics, registry)

    connector.scheduler = {"reservations": 0}

    text = await scraped(metrics, registry)
    assert "baton_reservations 0.0" in text
    assert "baton_connector_up 1.0" in text


async def test_what_the_node_itself_refused_is_shown_with_the_rest() -> None:
    """The gate, the scheduler and the worker turn things away; an alert needs one series."""
    metrics, _, registry = metrics_of({"refused": {"bad_token": 2, "malformed": 1}})

    text = await scraped(metrics, registry)

    assert 'baton_refused_total{kind="bad_token"} 3.0' in text
    assert 'baton_refused_total{kind="malformed"} 1.0' in text


async def test_a_connector_that_gives_no_answer_has_no_series_but_those_that_say_so() -> None:
    """Old values would look like true ones. A process that is there may go on by itself; what it says may make no sense."""
    metrics, connector, registry = metrics_of({"reservations": 3})
    silent, failed = ConnectorSilentError("no answer"), ConnectorFailedError("its process is gone")
    shown = []
    for scheduler, problem in (
        ({"reservations": 3}, silent),
        (None, silent),
        (None, failed),
        ({"reservations": "many"}, silent),
    ):
        connector.scheduler, connector.problem = scheduler, problem
        text = await scraped(metrics, registry)
        up, has_series = "baton_connector_up 1.0" in text, "baton_reservations" in text
        shown.append((up, "baton_connector_silent 1.0" in text, has_series))

    assert shown == [(True, False, True), (False, True, False), (False, False, False), (False, False, False)]


async def test_nothing_is_shown_to_who_did_not_ask() -> None:
    """The registry is read at other times too, by vLLM; what an earlier scrape saw must not be found then."""
    metrics, _, registry = metrics_of({})
    await scraped(metrics, registry)

    assert generate_latest(registry) == b""


async def test_a_single_family_can_be_asked_for() -> None:
    """Prometheus' `name[]` parameter; the names are known before the first scrape."""
    metrics, _, registry = metrics_of({"reservations": 3})
    await metrics.scrape()

    text = generate_latest(registry.restricted_registry(["baton_reservations"])).decode()

    assert "baton_reservations 3.0" in text
    assert "baton_fences" not in text


def test_the_registry_is_left_as_it_was_found() -> None:
    """Joining and leaving are idempotent, so a second server in one process is no error."""
    metrics, _, registry = metrics_of({})
    metrics.start()
    metrics.stop()
    metrics.stop()

    ConnectorMetrics("decode", cast("ConnectorClient", FakeConnector({})), refusals(), registry).start()


async def test_a_scrape_shows_the_tokens_way_to_the_host() -> None:
    """As the worker reports it, beside the connector's series; of a silent one nothing, rather than old values."""
    metrics, connector, registry = metrics_of({})

    shown = await scraped(metrics, registry)
    connector.scheduler = None

    assert "baton_token_slots_in_use 1.0" in shown
    assert 'baton_unintended_syncs_total{site="a.py:1"} 2.0' in shown
    assert "baton_token" not in await scraped(metrics, registry)
