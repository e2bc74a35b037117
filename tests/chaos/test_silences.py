"""The only decode node's engine is stopped, shorter and longer than its node waits for it: requests wait, none is refused."""

import asyncio
from pathlib import Path

import pytest

from baton.deploy.forkserver import ForkServer
from tests.chaos.cluster import Cluster, Shape
from tests.chaos.silences import UNHURRIED, Stops
from tests.chaos.workload import Reference
from tests.e2e.stack import stack_on

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1200)]

SEED = 22
STOPS_S = (1.5, 6.5)
RATE_PER_S = 4.0


def test_requests_wait_for_the_only_decode_node(
    forkserver: ForkServer, references: list[Reference], tmp_path: Path
) -> None:
    """All of them are answered, with the tokens of one plain server, and the hand-over works again afterwards."""
    with stack_on(forkserver, tmp_path) as stack:
        cluster = Cluster(stack, Shape(prefill=1, decode=1, decode_sequences=32, **UNHURRIED))
        stops = Stops(cluster, references, seed=SEED, rate_per_s=RATE_PER_S)

        found = asyncio.run(stops.run_each(cluster.decode[0], STOPS_S, between_s=1.0))

        print(found.summary())
        assert found.problems == []
        assert found.results["exact (disaggregated)"] > 0
