"""Which engine serves which peer, and when one is destroyed."""

import pytest

from baton.kv_connector.handoff.fencing import FenceDomains


def two_domains() -> FenceDomains:
    """Engine a serves domain 0, b domain 1."""
    domains = FenceDomains(2)
    domains.add(0, "a")
    domains.add(1, "b")
    return domains


def test_peers_are_spread_over_the_domains() -> None:
    """Each peer keeps its domain; a new one gets the domain with the fewest."""
    domains = two_domains()

    assert [domains.engine_for(peer) for peer in ("p", "q", "r", "p")] == ["a", "b", "a", "a"]


def test_a_peer_that_is_gone_makes_room() -> None:
    """Regression: peers that never come back (new ports) made the table grow and the domains uneven."""
    domains = two_domains()
    domains.engine_for("p")
    domains.engine_for("q")

    domains.forget("p")
    domains.forget("never seen")

    assert domains.engine_for("r") == "a"
    assert set(domains._assigned) == {"q", "r"}


def test_a_retired_engine_leaves_its_domain_without_one() -> None:
    """Nothing new goes through an engine that will be destroyed; the others go on."""
    domains = two_domains()
    domains.engine_for("p")

    domains.retire("a", 1.0)
    domains.retire("a", 2.0)

    assert domains.missing() == [0]
    assert domains.engine_for("p") is None
    assert domains.retired == {"a": 1.0}


def test_a_fenced_engine_is_forgotten_whether_it_was_retired_or_not() -> None:
    """Regression: reservations went on through an engine that had been destroyed without having been retired."""
    domains = two_domains()
    domains.retire("a", 1.0)
    domains.fencing.add("a")

    domains.fenced("a")
    assert (domains.retired, domains.fencing, domains.missing()) == ({}, set(), [0])

    domains.fenced("b")
    assert domains.missing() == [0, 1]


def test_a_name_is_not_used_twice() -> None:
    """A sender may still hold the old name: a new engine of that name would take its late writes."""
    domains = two_domains()
    with pytest.raises(AssertionError):
        domains.add(0, "c")
    domains.retire("a", 1.0)
    with pytest.raises(AssertionError):
        domains.add(0, "a")
