"""One stack for all of them, one reference for all cells, and a pair of nodes for each kind of model."""

from collections.abc import Iterator

import pytest

from baton.deploy.forkserver import ForkServer
from tests.e2e.stack import Stack, stack_on
from tests.matrix.kinds import Pair, pair_of
from tests.matrix.trial import PATIENT, Reference, reference_from


@pytest.fixture(scope="session")
def stack(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Every server of it is stopped at the session's end."""
    with stack_on(forkserver, tmp_path_factory.mktemp("matrix"), env=PATIENT) as running:
        yield running


@pytest.fixture(scope="session")
def reference(stack: Stack) -> Reference:
    return reference_from(stack)


@pytest.fixture(scope="module")
def pair(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A prefill node, a decode node and a proxy with one model, and what one plain server said."""
    with pair_of(stack, request.param) as running:
        yield running
