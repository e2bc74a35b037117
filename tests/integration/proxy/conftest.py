"""What the tests of the dashboard's page share."""

from collections.abc import Iterator

import pytest

from baton.proxy.dashboard import asking, recorder
from tests.support.browser import Browser


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is forgotten while a page is loaded, and nodes that are slow to answer are waited for."""
    monkeypatch.setattr(recorder, "LOOK_S", 180.0)
    monkeypatch.setattr(asking, "TIMEOUT_S", 20.0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("browser"))
    yield running
    running.stop()
