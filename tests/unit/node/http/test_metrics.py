"""Baton's series on vLLM's `/metrics`."""

import asyncio
import logging
from typing import Any
from unittest.mock import AsyncMock, Mock

from prometheus_client import CollectorRegistry, generate_latest

from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.node.connector.connector_channel import Snapshots
from baton.node.errors import ConnectorFailedError, ConnectorSilentError
from baton.node.http.metrics import ConnectorMetrics


def refusals() -> Refusals:
    """One request without the token has been turned away."""
    counted = Refusals(logging.getLogger(__name__))
    counted.count(Refused.BAD_TOKEN)
    return counted


REPORT = {"runner": "CpuRunner", "tokens": {"slots": 4, "slots_in_use": 1}, "syncs": {"a.py:1": 2}}


def metrics_of(*answers: dict[str, Any] | Exception) -> tuple[ConnectorMetrics, CollectorRegistry]:
    """Series of a node whose connector gives these answers one after the other."""
    both = [answer if isinstance(answer, Exception) else Snapshots(answer, {}) for answer in answers]
    runner = [answer if isinstance(answer, Exception) else REPORT for answer in answers]
    registry, connector = (
        CollectorRegistry(),
        Mock(both=AsyncMock(side_effect=both), runner=AsyncMock(side_effect=runner)),
    )
    metrics = ConnectorMetrics("decode", connector, refusals(), registry)
    metrics.start()
    return metrics, registry


async def scraped(metrics: ConnectorMetrics, registry: CollectorRegistry) -> str:
    """What a scrape shows, in a task of its own as every request has."""

    async def request() -> str:
        await metrics.scrape()
        return await asyncio.to_thread(lambda: generate_latest(registry).decode())

    return await asyncio.create_task(request())


async def test_a_scrape_shows_what_is_true_now() -> None:
    """A gauge falls without any step in between; what the gate, the scheduler and the worker turned away is one series."""
    refused = {"refused": {"bad_token": 2, "malformed": 1}}
    metrics, registry = metrics_of({"reservations": 3}, {"reservations": 0, **refused})
    assert "baton_reservations 3.0" in await scraped(metrics, registry)

    text = await scraped(metrics, registry)
    assert "baton_reservations 0.0" in text
    assert "baton_connector_up 1.0" in text
    assert 'baton_refused_total{kind="bad_token"} 3.0' in text
    assert 'baton_refused_total{kind="malformed"} 1.0' in text


async def test_a_connector_that_gives_no_answer_has_no_series_but_those_that_say_so() -> None:
    """Old values would look like true ones. A process that is there may go on by itself; what it says may make no sense."""
    silent, failed = ConnectorSilentError("no answer"), ConnectorFailedError("its process is gone")
    metrics, registry = metrics_of({"reservations": 3}, silent, failed, {"reservations": "many"})
    shown = []
    for _ in range(4):
        text = await scraped(metrics, registry)
        up, has_series = "baton_connector_up 1.0" in text, "baton_reservations" in text
        shown.append((up, "baton_connector_silent 1.0" in text, has_series))

    assert shown == [(True, False, True), (False, True, False), (False, False, False), (False, False, False)]


async def test_nothing_is_shown_to_who_did_not_ask() -> None:
    """The registry is read at other times too, by vLLM; what an earlier scrape saw must not be found then."""
    metrics, registry = metrics_of({})
    await scraped(metrics, registry)

    assert generate_latest(registry) == b""


async def test_a_single_family_can_be_asked_for() -> None:
    """Prometheus' `name[]` parameter; the names are known before the first scrape."""
    metrics, registry = metrics_of({"reservations": 3})
    await metrics.scrape()

    text = generate_latest(registry.restricted_registry(["baton_reservations"])).decode()

    assert "baton_reservations 3.0" in text
    assert "baton_fences" not in text


def test_the_registry_is_left_as_it_was_found() -> None:
    """Joining and leaving are idempotent, so a second server in one process is no error."""
    metrics, registry = metrics_of({})
    metrics.start()
    metrics.stop()
    metrics.stop()

    ConnectorMetrics("decode", Mock(), refusals(), registry).start()


async def test_a_scrape_shows_the_tokens_way_to_the_host() -> None:
    """As the worker reports it, beside the connector's series; of a silent one nothing, rather than old values."""
    metrics, registry = metrics_of({}, ConnectorSilentError("no report"))

    shown = await scraped(metrics, registry)

    assert "baton_token_slots_in_use 1.0" in shown
    assert 'baton_unintended_syncs_total{site="a.py:1"} 2.0' in shown
    assert "baton_token" not in await scraped(metrics, registry)
