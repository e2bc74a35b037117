import pytest

from tests.support.kubernetes.render import OVERLAYS


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    """Each overlay, for every test that asks for one."""
    return str(request.param)
