"""What the proxy itself cannot do is no fault of a node."""

import asyncio
import errno
import itertools
from typing import Any

import pytest

from tests.support.cluster import cluster


async def test_nodes_stay_in_use_when_the_proxy_can_open_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left, here or in the system: requests and probes fail for a while, and no node is taken for dead."""
    codes = itertools.cycle((errno.EMFILE, errno.ENFILE))

    async def fails(*_: Any, **__: Any) -> None:
        raise OSError(next(codes), "none is left")

    async with cluster(prefill=2, decode=2, breaker_failures=2) as running:
        with monkeypatch.context() as patched:
            patched.setattr("baton.proxy.http.pool.Pool.connect", fails)
            failed = await asyncio.gather(*(running.complete() for _ in range(20)))
            nodes = await running.nodes()
            counted = await running.metric('baton_leg_failures_total{kind="own",role="decode"}')
        after = await running.complete()

    assert {each.status_code for each in failed} <= {200, 502, 503}
    assert {each.status_code for each in failed} != {200}
    assert {node["state"] for node in nodes} == {"ready"}
    assert counted
    assert after.status_code == 200
