import pytest

from tests.support.kubernetes.render import OVERLAYS


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)
