"""What holds for every test: its kind follows from its folder, and the shell's own settings stay outside."""

import os
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("e2e", "chaos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by folder, and run the fast ones first."""
    order = ("unit", "explorer", "integration", "e2e", "matrix", "chaos")
    for item in items:
        if _folder(item) in MARKED_FOLDERS:
            item.add_marker(_folder(item))
    items.sort(key=lambda item: order.index(_folder(item)) if _folder(item) in order else 0)


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_the_shell() -> None:
    """`BATON_…` of whoever runs the tests must not change what they test."""
    for name in [name for name in os.environ if name.startswith("BATON_")]:
        del os.environ[name]


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]
