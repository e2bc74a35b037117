"""Rubbish is counted exactly, and logged sparingly."""

import logging

import pytest

from baton.kv_connector.telemetry.refusals import LOG_EVERY_S, MAX_DETAIL_CHARS, Refusals, Refused
from tests.support.clock import Clock

LOGGER = logging.getLogger("tests.refusals")


def test_every_refusal_is_counted_by_kind() -> None:
    """Kinds that never came are not listed, so that an empty mapping means peace."""
    refusals = Refusals(LOGGER)
    assert refusals.snapshot() == {}

    for kind in (Refused.VERSION, Refused.MALFORMED, Refused.MALFORMED):
        refusals.count(kind)
    refusals.count(Refused.HANDSHAKE, number=5)

    assert refusals.snapshot() == {"handshake": 5, "malformed": 2, "version": 1}


def test_a_flood_is_one_line_per_kind_and_interval(caplog: pytest.LogCaptureFixture) -> None:
    """A peer that sends garbage must not fill the disk; the next line tells how many there were."""
    clock = Clock()
    refusals = Refusals(LOGGER, clock)
    for _ in range(1_000):
        refusals.count(Refused.MALFORMED, "rubbish")
    refusals.count(Refused.VERSION)
    assert [record.getMessage() for record in caplog.records] == [
        "refused 1 × malformed, the last: rubbish",
        "refused 1 × version, the last: ",
    ]

    clock.now_s += LOG_EVERY_S
    refusals.count(Refused.MALFORMED, "more rubbish")

    assert caplog.records[-1].getMessage() == "refused 1000 × malformed, the last: more rubbish"
    assert len(caplog.records) == 3


def test_what_the_peer_wrote_is_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    """One line is one line and has one length, whatever stands in a frame."""
    Refusals(LOGGER).count(Refused.MALFORMED, "a\nforged line\x1b" + "x" * 1_000_000)

    message = caplog.records[0].getMessage()
    assert "the last: a?forged line?xxx" in message
    assert len(message) < MAX_DETAIL_CHARS + 100
