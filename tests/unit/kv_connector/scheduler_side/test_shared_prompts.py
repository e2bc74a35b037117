"""Several engine requests for one prompt."""

import pytest

from baton.kv_connector.scheduler_side.shared_prompts import SharedPrompts


def family(*, can_share: bool = True) -> SharedPrompts:
    """One owner with a prompt of 40 tokens, and one sibling."""
    siblings = SharedPrompts(can_share=can_share)
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


def test_a_sibling_does_not_wait_for_an_owner_that_is_gone() -> None:
    """The owner was aborted: the sibling computes the prompt itself."""
    siblings = family()
    siblings.end("owner")
    assert not siblings.must_wait("sibling")


def test_a_late_sibling_does_not_wait() -> None:
    """The prompt is in the cache already."""
    siblings = family()
    siblings.scheduled("owner", 41)
    siblings.join("late", "owner")
    assert not siblings.must_wait("late")


def test_without_a_prefix_cache_no_request_waits() -> None:
    """There would be nothing to find."""
    assert not family(can_share=False).must_wait("sibling")


@pytest.mark.parametrize("order", [("owner", "sibling"), ("sibling", "owner")])
def test_nothing_is_kept_of_requests_that_have_ended(order: tuple[str, str]) -> None:
    """Whichever of the two ends first."""
    siblings = family()
    for request_id in order:
        siblings.end(request_id)
    assert (siblings._busy, siblings._owner_of, siblings.total) == ({}, {}, 1)
