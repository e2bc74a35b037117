"""How a limit of open files is divided."""

import pytest

from proxy.admission.descriptors import OF_A_REQUEST, budget


@pytest.mark.parametrize("limit", [256, 1024, 4096, 1 << 20])
@pytest.mark.parametrize("members", [0, 2, 50])
def test_all_parts_together_are_within_the_limit(limit: int, members: int) -> None:
    """Each connection, two more for each request, two for each member, and our own."""
    allowed = budget(limit, members)
    used = allowed.connections + (OF_A_REQUEST - 1) * allowed.requests + 2 * members

    assert used <= limit - 40
    assert allowed.requests >= (limit - 48 - 2 * members) // 4
    assert allowed.connections > allowed.requests


def test_a_hopeless_limit_still_lets_a_request_in() -> None:
    """Rather than refuse all."""
    assert budget(10, members=5).requests == 1
