"""What milestones say about a transfer."""

import pytest

from baton.kv_connector.telemetry.timings import (
    LEAST_TO_HIDE_S,
    commit_to_first_step_s,
    counted_from,
    exposed_push_s,
    exposed_transfer_s,
    hidden_share,
)

PREFILL = {"scheduled": 0.0, "last_layer": 0.4, "commit": 0.5}
DECODE = {"arrived": 0.0, "commit_received": 7.0, "first_step": 7.25}


def test_milestones_count_from_one_of_them() -> None:
    """They come in the order of time. Earlier ones are negative; without the origin nothing can be said."""
    marks = {"scheduled": 10.0, "commit": 10.1234567, "reserved": 9.5}

    found = list(counted_from("scheduled", marks).items())

    assert found == [("reserved", -0.5), ("scheduled", 0.0), ("commit", 0.123457)]
    assert counted_from("arrived", marks) == {}


def test_exposed_is_what_both_nodes_added() -> None:
    """P's part and D's part are durations of one clock each; their sum needs no common clock."""
    assert exposed_push_s(PREFILL) == pytest.approx(0.1)
    assert commit_to_first_step_s(DECODE) == 0.25
    assert exposed_transfer_s(PREFILL, DECODE) == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [({}, DECODE), (PREFILL, {}), (PREFILL, {"commit_received": 7.0}), ({"commit": 1.0}, DECODE)],
)
def test_a_transfer_that_did_not_get_that_far_has_no_exposed_time(
    prefill: dict[str, float], decode: dict[str, float]
) -> None:
    """A missing milestone is not a zero."""
    assert exposed_transfer_s(prefill, decode) is None


@pytest.mark.parametrize(
    ("computing", "pushing", "measured", "share"),
    [
        (1.0, 0.4, 1.0, 1.0),  # all of the transfer behind the prefill
        (0.4, 1.0, 1.0, 1.0),  # all of the prefill behind the transfer
        (1.0, 0.4, 1.1, 0.75),
        (1.0, 0.4, 1.4, 0.0),  # one after the other
        (1.0, 0.4, 1.6, -0.5),  # and something else besides
    ],
)
def test_the_hidden_share_is_of_the_shorter_one(
    computing: float, pushing: float, measured: float, share: float
) -> None:
    prefill = {"scheduled": 5.0, "last_layer": 5.0 + computing, "commit": 5.0 + measured}

    assert hidden_share(prefill, pushing) == pytest.approx(share)
    assert share == pytest.approx((computing + pushing - measured) / min(computing, pushing))


@pytest.mark.parametrize(
    ("prefill", "pushing"),
    [
        (PREFILL, LEAST_TO_HIDE_S),
        ({"scheduled": 0.0, "last_layer": LEAST_TO_HIDE_S, "commit": 1.0}, 1.0),
        ({"scheduled": 0.0, "last_layer": 1.0}, 1.0),
        ({}, 1.0),
    ],
    ids=["short transfer", "short prefill", "never committed", "never scheduled"],
)
def test_where_there_is_too_little_to_hide_there_is_no_share(prefill: dict[str, float], pushing: float) -> None:
    """It would show the fixed costs and nothing else."""
    assert hidden_share(prefill, pushing) is None
