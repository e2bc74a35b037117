"""How a limit of open files is divided."""

import resource
from unittest.mock import Mock

import pytest

from baton.proxy.http_server.descriptors import budget, limit, raise_limit


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


def test_the_process_allows_itself_as_many_files_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the system has a lower limit of its own; then it goes on with what it has."""
    change = Mock()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", change)
    raise_limit()
    change.side_effect = ValueError
    raise_limit()

    assert change.call_args.args == (resource.RLIMIT_NOFILE, (4096, 4096))


@pytest.mark.parametrize(("soft", "found"), [(1024, 1024), (resource.RLIM_INFINITY, 1 << 20)])
def test_no_limit_is_a_large_one(soft: int, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))

    assert limit() == found
