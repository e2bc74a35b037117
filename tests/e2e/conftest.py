"""One stack for the whole session; a pair that most tests share, and nodes that send and receive."""

from collections.abc import Iterator

import pytest

from baton.deploy.forkserver import ForkServer
from tests.e2e.both_ways import Nodes, running_nodes
from tests.e2e.fidelity import answers, choose_prompts
from tests.e2e.stack import CLOSE, FLOAT32, STORES, TOOLS, Server, Stack, stack_on
from tests.e2e.waiting import leftovers


@pytest.fixture(scope="session")
def stack(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Every server of it is stopped at the session's end."""
    with stack_on(forkserver, tmp_path_factory.mktemp("stack")) as running:
        yield running


class Trio:
    """A prefill node that chunks at 256 tokens, a decode node and a proxy, in float32 and with tools, and a reference."""

    def __init__(self, stack: Stack) -> None:
        flags = (*FLOAT32, *CLOSE, *TOOLS)
        self.prefill = stack.node("prefill", *flags, "--max-num-batched-tokens", "256", env=STORES)
        self.decode = stack.node("decode", *flags, env=STORES)
        self.plain: Server = stack.plain(*flags, env=STORES)
        self.proxy = stack.proxy([self.prefill], [self.decode])
        self.plain.wait_ready()
        self.model = stack.model
        self.prompts = choose_prompts(20)[:-2]  # of up to 1,839 tokens
        self.reference = answers(self.plain.url, self.model, self.prompts)


@pytest.fixture(scope="session")
def trio(stack: Stack) -> Iterator[Trio]:
    """Servers that the tests share, and leave as they found them."""
    with stack.stopping():
        yield Trio(stack)


@pytest.fixture(
    scope="session", params=[False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["", "asynchronous"]
)
def both_ways_nodes(
    stack: Stack, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Nodes]:
    """Servers that the tests share."""
    with running_nodes(stack, tmp_path_factory.mktemp("computed"), asynchronous=request.param) as nodes:
        yield nodes


@pytest.fixture
def nodes(both_ways_nodes: Nodes) -> Iterator[Nodes]:
    """The same; afterwards all blocks of their pools are free again, by the connector's count and by vLLM's gauge, and their own checks find nothing."""
    yield both_ways_nodes
    assert leftovers(both_ways_nodes.prefill, both_ways_nodes.first, both_ways_nodes.second) == []


@pytest.fixture(autouse=True)
def _servers_of_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test starts ends with it."""
    if "stack" not in request.fixturenames:
        yield
        return
    with request.getfixturevalue("stack").stopping():
        yield
