"""What holds for every test: its kind follows from its folder, and the shell's own settings stay outside."""

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("e2e", "chaos")
REAL_ENGINES = ("e2e", "matrix", "chaos")  # they share servers, and take both cores
ONE_WORKER = "engines"  # of pytest-xdist runs them all, and what makes networks beside them


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by folder; run the fast ones first, or, among several workers, the longest group first."""
    order = ["unit", "explorer", "integration", *REAL_ENGINES]
    if several := hasattr(config, "workerinput"):
        order = [*REAL_ENGINES, "integration", "explorer", "unit"]
    for item in items:
        if _folder(item) in MARKED_FOLDERS:
            item.add_marker(_folder(item))
        if several:
            alone = _folder(item) in REAL_ENGINES or item.get_closest_marker("host_network") is not None
            item.add_marker(pytest.mark.xdist_group(ONE_WORKER if alone else str(item.path)))
    items.sort(key=lambda item: order.index(_folder(item)) if _folder(item) in order else 0)


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_shell() -> None:
    """`BATON_…` of whoever runs the tests must not change what they test."""
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        del os.environ[name]


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
