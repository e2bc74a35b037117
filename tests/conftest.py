"""What holds for every test: its kind follows from its folder, and the shell's own settings stay outside."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton.deploy.forkserver import ForkServer

# Two threads wait for each other in every operation, which takes many times as long beside another worker's tests.
os.environ["OMP_NUM_THREADS"] = "1"

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("e2e", "chaos")
REAL_ENGINES = ("e2e", "matrix", "chaos")  # they share servers, and take both cores
HOST_NETWORKS = ("test_late_writes.py", "test_probe_gap.py")  # at fixed addresses
FORKED = ("test_pipeline_stages.py",)  # from the fork server of the real engines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by folder; run the fast ones first, or, among several workers, the longest group first."""
    order = ["unit", "explorer", "integration", *REAL_ENGINES]
    if hasattr(config, "workerinput"):
        order = [*REAL_ENGINES, "unit", "explorer", "integration"]
    for item in items:
        if _folder(item) in MARKED_FOLDERS:
            item.add_marker(_folder(item))
    items.sort(key=lambda item: order.index(_folder(item)) if _folder(item) in order else 0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, and all tests of real engines, their fork server and the host's network to a single one."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = Path(nodeid.partition("::")[0])
            alone = path.parts[1] in REAL_ENGINES or path.name in (*HOST_NETWORKS, *FORKED)
            return "engines" if alone else str(path)

    return ByFile(config, log)


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_shell() -> None:
    """`BATON_…` variables of the shell that runs the tests must not change what they test."""
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        del os.environ[name]


@pytest.fixture(autouse=True, scope="session")
def _authorities_are_read_once() -> Iterator[None]:
    """Each HTTP client would read those of TLS again, which takes 40 ms."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.fixture(scope="session")
def forkserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A process that has imported vLLM, which takes ten seconds; all tests of a worker fork theirs from it."""
    from tests.e2e.stack import vllm_forkserver

    with vllm_forkserver(tmp_path_factory.mktemp("forkserver") / "zygote.log") as server:
        yield server


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
