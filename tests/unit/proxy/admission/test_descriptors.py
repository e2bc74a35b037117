"""How a limit of open files is divided."""

import pytest

from proxy.admission.descriptors import OF_A_REQUEST, budget


@pytest.mark.parametrize("limit", [256, 1024, 4096, 1 << 20])
@pytest.mark.parametrize("members", [0, 2, 50, 1000])
def test_all_parts_together_are_within_the_limit(limit: int, members: int) -> None:
    """Each connection, two more for each request, two for each member, and our own; who accepts counts no members."""
    allowed = budget(limit, members)
    used = budget(limit).connections + (OF_A_REQUEST - 1) * allowed.requests + 2 * members
    enough = (limit - 48) // 4 > members

    assert used <= limit - 40 or not enough
    assert allowed.requests == ((limit - 48) // 4 - members if enough else 1)
    assert allowed.connections > allowed.requests


def test_a_hopeless_limit_still_lets_a_request_in() -> None:
    """Rather than refuse all."""
    assert budget(10, members=5).requests == 1
