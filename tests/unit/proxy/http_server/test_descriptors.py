"""How a limit of open files is divided."""

import pytest

from baton.proxy.http_server.descriptors import budget


@pytest.mark.parametrize("limit", [10, 256, 1024, 4096, 1 << 20])
@pytest.mark.parametrize("members", [0, 2, 50, 1000])
def test_all_parts_together_are_within_the_limit(limit: int, members: int) -> None:
    """Connections of both kinds, two for each member, and our own; who accepts counts no members. A hopeless limit still lets a request in."""
    allowed = budget(limit, members)
    used = budget(limit).from_clients + allowed.to_nodes + 2 * members
    enough = (limit - 48) // 4 > members

    assert used <= limit - 40 or not enough
    assert allowed.to_nodes == ((limit - 48) // 2 - 2 * members if enough else 2)
    assert allowed.from_clients >= allowed.to_nodes
