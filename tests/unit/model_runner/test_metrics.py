"""A worker's report on `/metrics`."""

import msgspec
import pytest
import torch

from baton.model_runner.metrics import families
from baton.model_runner.tokens.transfer import HostTransfer


def test_a_report_becomes_series() -> None:
    """Times, waits and how full the ring is."""
    transfer = HostTransfer()
    transfer.submit({"ids": torch.zeros(1, 1)})
    report = {
        "runner": "CpuRunner",
        "syncs": {},
        "tokens": transfer.counts.snapshot() | {"slots": 4, "slots_in_use": 2},
    }

    samples = {sample.name: sample.value for family in families(report) for sample in family.samples}

    assert samples["baton_token_to_host_seconds_count"] == 1
    assert samples["baton_token_slots_in_use"] == 2
    assert samples["baton_token_slot_waits_total"] == 0


def test_an_engine_s_own_runner_shows_empty_series() -> None:
    """A series that comes and goes breaks queries."""
    names = [family.name for family in families({"runner": "CPUModelRunner", "syncs": {}})]

    assert names == [family.name for family in families({})]


def test_something_else_is_refused() -> None:
    """Such as the report of another version."""
    with pytest.raises(msgspec.ValidationError):
        families({"tokens": {"slots": "many"}})
