"""Several engine requests for one prompt."""

import pytest

from baton.kv_connector.scheduler_side.shared_prompts import SharedPrompts


def family() -> SharedPrompts:
    """One owner with a prompt of 40 tokens, and one sibling."""
    siblings = SharedPrompts(can_share=True)
    siblings.own("owner", 40)
    siblings.join("sibling", "owner")
    return siblings


def test_a_sibling_waits_until_the_whole_prompt_is_scheduled() -> None:
    """A first chunk is not enough; the owner itself never waits."""
    siblings = family()
    siblings.scheduled("owner", 39)
    assert (siblings.must_wait("sibling"), siblings.must_wait("owner")) == (True, False)

    siblings.scheduled("owner", 40)

    assert not siblings.must_wait("sibling")


def test_a_late_sibling_does_not_wait() -> None:
    """The prompt is in the cache already."""
    siblings = family()
    siblings.scheduled("owner", 41)
    siblings.join("late", "owner")
    assert not siblings.must_wait("late")


@pytest.mark.parametrize("order", [("owner", "sibling"), ("sibling", "owner")])
def test_nothing_is_kept_of_requests_that_have_ended(order: tuple[str, str]) -> None:
    """Whichever of the two ends first."""
    siblings = family()
    for request_id in order:
        siblings.end(request_id)
    assert (siblings._busy, siblings._owner_of, siblings.total) == ({}, {}, 1)
