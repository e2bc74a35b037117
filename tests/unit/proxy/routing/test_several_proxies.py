"""Several proxies: what nodes say of their load makes them balance better, and never much worse."""

import pytest

from baton.proxy.routing.policies import LeastLoad
from tests.unit.proxy.routing.several_proxies import simulate


@pytest.mark.parametrize("proxies", [2, 4])
@pytest.mark.parametrize("length_s", [5.0, 20.0])
def test_proxies_that_know_of_each_other_balance_better(proxies: int, length_s: float) -> None:
    """Requests that last longer than a probe's interval: the busiest node has less more than the idlest."""
    blind, told = (simulate(LeastLoad, polled=polled, proxies=proxies, length_s=length_s) for polled in (False, True))

    print(f"{proxies} proxies, {length_s} s: blind {blind}, told {told}")
    assert told.imbalance < blind.imbalance


@pytest.mark.parametrize("length_s", [0.1, 0.3])
def test_old_news_do_no_harm(length_s: float) -> None:
    """Requests that have ended long before the next probe: following the last sample would send all to one node."""
    blind, told = (
        simulate(LeastLoad, polled=polled, proxies=8, length_s=length_s, utilisation=0.92, seconds=40.0)
        for polled in (False, True)
    )

    print(f"{length_s} s: blind {blind}, told {told}")
    assert told.mean_latency < 1.1 * blind.mean_latency
    assert told.imbalance < 1.2 * blind.imbalance


def test_a_single_proxy_is_as_before() -> None:
    """All work is its own: what nodes say changes nothing."""
    blind, told = (simulate(LeastLoad, polled=polled, proxies=1, length_s=5.0) for polled in (False, True))

    assert told == blind
