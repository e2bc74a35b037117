"""A node's snapshots in Prometheus' terms."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from baton.contracts.kv_transfer import Role
from baton.kv_connector.metrics import families
from baton.kv_connector.telemetry.histogram import SHARE, Histogram
from baton.kv_connector.telemetry.refusals import Refused

OPEN, NEW = {"peer": "a", "state": "open"}, {"peer": "b", "state": "new"}


def samples(role: Role, scheduler: Mapping[str, Any], worker: Mapping[str, Any]) -> dict[str, float]:
    """Value by name and labels."""
    found = {}
    for family in families(role, scheduler, worker):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items() if value)
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_prefill_node_counts_outcomes_pushes_and_bytes() -> None:
    """Each outcome is there from the start, at 0, so that a rate can be computed of its first occurrence."""
    totals = {"committed": 5, "dirty": 1, "pushes": 40, "failed_pushes": 2, "bytes": 4096, "mismatched": 3}

    found = samples("prefill", {"totals": {"idle_checks": 6}}, {"totals": totals, "sessions": [OPEN, NEW]})

    assert {name: value for name, value in found.items() if not re.search("bucket|_share|refused", name)} == {
        "baton_transfers_total{outcome=committed}": 5,
        "baton_transfers_total{outcome=revoked}": 0,
        "baton_transfers_total{outcome=cancelled}": 0,
        "baton_transfers_total{outcome=failed}": 0,
        "baton_transfers_total{outcome=dirty}": 1,
        "baton_pushes_total{result=ok}": 40,
        "baton_pushes_total{result=failed}": 2,
        "baton_pushed_bytes_total": 4096,
        "baton_exposed_push_seconds_count": 0,
        "baton_exposed_push_seconds_sum": 0,
        "baton_verified_transfers_total{result=mismatch}": 3,
        "baton_idle_checks_total": 6,
        "baton_integrity_findings_total": 0,
        "baton_open_sessions": 1,
    }


def test_a_decode_node_counts_outcomes_and_shows_what_is_held_now() -> None:
    """Recomputed transfers are told apart by the class of their reason."""
    scheduler = {
        "totals": {"loaded": 7, "started": 6, "cancelled": 2, "cached": 3, "recomputed": 4, "integrity_findings": 2},
        "recomputed_by_reason": {"timeout": 3, "other": 1},
        "reservations": 2,
        "reserved_blocks": 9,
    }

    totals = {"fences": 1, "verified": 8, "mismatched": 3, "unverifiable": 5}

    found = samples("decode", scheduler, {"totals": totals, "quarantined_blocks": 4, "sessions": [OPEN]})

    assert {name: value for name, value in found.items() if not re.search("_seconds|refused", name)} == {
        "baton_transfers_total{outcome=loaded}": 7,
        "baton_transfers_total{outcome=cached}": 3,
        "baton_transfers_total{outcome=cancelled}": 2,
        "baton_transfers_total{outcome=recomputed,reason=timeout}": 3,
        "baton_transfers_total{outcome=recomputed,reason=other}": 1,
        "baton_started_requests_total": 6,
        "baton_fences_total": 1,
        "baton_reservations": 2,
        "baton_reserved_blocks": 9,
        "baton_quarantined_blocks": 4,
        "baton_verified_transfers_total{result=ok}": 8,
        "baton_verified_transfers_total{result=mismatch}": 3,
        "baton_verified_transfers_total{result=failed}": 5,
        "baton_idle_checks_total": 0,
        "baton_integrity_findings_total": 2,
        "baton_open_sessions": 1,
    }


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_refusals_of_all_parts_are_added_up(role: Role) -> None:
    """Kinds that never came are there, at 0."""
    found = dict.fromkeys(Refused, 0.0) | {Refused.MALFORMED: 7, Refused.ENGINE: 1}

    shown = families(role, {"refused": {"malformed": 1}}, {"refused": {"malformed": 2, "engine": 1}}, {"malformed": 4})

    (refused,) = [family for family in shown if family.name == "baton_refused"]
    assert {sample.labels["kind"]: sample.value for sample in refused.samples} == found


def test_a_histogram_is_cumulative() -> None:
    """Prometheus counts everything up to a bound; the last bucket holds all."""
    histogram = Histogram(SHARE)
    for share in (0.95, 0.35, -0.2, 0.35):
        histogram.observe(share)

    found = samples("prefill", {}, {"histograms": {"hidden_share": histogram.snapshot()}})

    buckets = [value for name, value in found.items() if name.startswith("baton_hidden_share_bucket")]
    assert buckets == [1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 4, 4, 4]
    assert found["baton_hidden_share_bucket{le=0.4}"] == 3
    assert found["baton_hidden_share_count"] == 4
    assert found["baton_hidden_share_sum"] == pytest.approx(1.65)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_names_do_not_depend_on_what_has_happened(role: Role) -> None:
    """A node that has just started shows what it will show, in both of Prometheus' formats."""

    class Fixed(Collector):
        def collect(self) -> list[Metric]:
            return families(role, {}, {})

    registry = CollectorRegistry(auto_describe=True)
    registry.register(Fixed())

    assert b"# TYPE baton_transfers_total counter" in generate_latest(registry)
    openmetrics, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    assert b"# TYPE baton_transfers counter" in openmetrics(registry)
    assert b"baton_open_sessions 0.0" in generate_latest(registry)


def test_what_is_no_snapshot_is_refused() -> None:
    """Another version's snapshot must not be shown as if it were ours."""
    with pytest.raises(msgspec.ValidationError):
        families("prefill", {}, {"totals": [1, 2]})


def test_a_node_that_sends_and_receives_shows_both_sides() -> None:
    """Each once in a family: what both have is added up, and the rest is there beside it."""
    worker = {"totals": {"fences": 2, "verified": 1}, "reverse": {"totals": {"committed": 5, "cancelled": 3}}}
    scheduler = {"totals": {"loaded": 7, "cancelled": 2}, "reverse": {"totals": {"completed": 5}}}

    found = samples("decode", scheduler, worker)
    metrics = families("decode", scheduler, worker)

    assert [metric.name for metric in metrics] == [each.name for each in families("decode", {}, {}, both_ways=True)]
    assert len({metric.name for metric in metrics}) == len(metrics)
    assert found["baton_transfers_total{outcome=loaded}"] == 7
    assert found["baton_transfers_total{outcome=committed}"] == 5
    assert found["baton_transfers_total{outcome=cancelled}"] == 5
    assert (found["baton_fences_total"], found["baton_pushes_total{result=ok}"]) == (2, 0)
