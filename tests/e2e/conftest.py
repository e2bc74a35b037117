"""One stack for the whole session; a pair that most tests share."""

from collections.abc import Iterator

import pytest

from baton.deploy.forkserver import ForkServer
from tests.e2e.fidelity import answers, choose_prompts
from tests.e2e.stack import FLOAT32, Server, Stack, stack_on


@pytest.fixture(scope="session")
def stack(forkserver: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Every server of it is stopped at the session's end."""
    with stack_on(forkserver, tmp_path_factory.mktemp("stack")) as running:
        yield running


class Trio:
    """A prefill node that chunks at 256 tokens, a decode node and a proxy, in float32, and a reference."""

    def __init__(self, stack: Stack) -> None:
        self.prefill = stack.node("prefill", *FLOAT32, "--max-num-batched-tokens", "256")
        self.decode = stack.node("decode", *FLOAT32)
        self.plain: Server = stack.plain(*FLOAT32)
        self.proxy = stack.proxy([self.prefill], [self.decode])
        self.plain.wait_ready()
        self.model = stack.model
        self.prompts = choose_prompts(20)
        self.reference = answers(self.plain.url, self.model, self.prompts)


@pytest.fixture(scope="session")
def trio(stack: Stack) -> Iterator[Trio]:
    """Servers that the tests share, and leave as they found them."""
    with stack.stopping():
        yield Trio(stack)


@pytest.fixture(autouse=True)
def _servers_of_one_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test starts ends with it."""
    if "stack" not in request.fixturenames:
        yield
        return
    with request.getfixturevalue("stack").stopping():
        yield
