"""The right answers, which all tests here compare with."""

import pytest

from baton.deploy.forkserver import ForkServer
from tests.chaos.runs import plain_server, references_from
from tests.chaos.workload import Reference
from tests.e2e.stack import stack_on

SEED = 20


@pytest.fixture(scope="session")
def references(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[Reference]:
    """Asked of one plain server."""
    with stack_on(forkserver, tmp_path_factory.mktemp("references")) as stack:
        return references_from(plain_server(stack), stack.model, SEED, families=4, members=6)
