"""One stack and one reference for all cells."""

from collections.abc import Iterator

import pytest

from baton.deploy.forkserver import ForkServer
from tests.e2e.stack import Stack, stack_on
from tests.matrix.trial import Reference, reference_from

# What is asked is whether hand-overs are exact, not whether a push is fast enough where eight ranks share two cores.
PATIENT = {
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "20",
    "MC_TCP_STATUS_TIMEOUT_SEC": "20",
    "MC_TRANSFER_TIMEOUT": "20",
    "MC_HANDSHAKE_CONNECT_TIMEOUT": "20",
    "BATON_PROXY_PROBE_TIMEOUT_S": "20",
}


@pytest.fixture(scope="session")
def stack(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Every server of it is stopped at the session's end."""
    with stack_on(forkserver, tmp_path_factory.mktemp("matrix"), env=PATIENT) as running:
        yield running


@pytest.fixture(scope="session")
def reference(stack: Stack) -> Reference:
    return reference_from(stack)
