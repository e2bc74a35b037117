import pytest

from tests.support.fake_transport import Transport


@pytest.fixture
def transport() -> Transport:
    return Transport()
