"""A worker's report of its token path as Prometheus' families. Pure; `docs/metrics.md` says what each one means."""

from collections.abc import Mapping
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from baton.kv_connector.metrics import HistogramValues, histogram_family


class _Tokens(msgspec.Struct):
    histograms: dict[str, HistogramValues] = {}
    submitted: int = 0
    slot_waits: int = 0
    grown: int = 0
    slots: int = 0
    slots_in_use: int = 0
    slots_in_use_max: int = 0


class _Report(msgspec.Struct):
    tokens: _Tokens | None = None
    syncs: dict[str, int] = {}


def families(report: Mapping[str, Any]) -> list[Metric]:
    """Return everything that a report says; an empty one gives the same families, without counts."""
    found = msgspec.convert(report, _Report)
    tokens = found.tokens or _Tokens()
    syncs = CounterMetricFamily(
        "baton_unintended_syncs",
        "Unintended waits of the model thread for the device, by line; only with sync_audit",
        labels=["site"],
    )
    for site, count in found.syncs.items():
        syncs.add_metric([site], count)
    return [
        histogram_family(
            "baton_token_to_host_seconds",
            "From a step's tokens being submitted to their being on the host",
            tokens.histograms.get("to_host_s"),
        ),
        histogram_family(
            "baton_token_wait_seconds",
            "How long readers of a step's tokens waited for them",
            tokens.histograms.get("wait_s"),
        ),
        GaugeMetricFamily("baton_token_slots", "Slots for steps whose tokens are on their way", tokens.slots),
        GaugeMetricFamily("baton_token_slots_in_use", "Slots that are in use", tokens.slots_in_use),
        GaugeMetricFamily(
            "baton_token_slots_in_use_max", "The most slots that have been in use at once", tokens.slots_in_use_max
        ),
        CounterMetricFamily("baton_token_slot_waits", "Steps that found no free slot", tokens.slot_waits),
        CounterMetricFamily("baton_token_slots_grown", "Slots that had to be enlarged for a step", tokens.grown),
        syncs,
    ]
