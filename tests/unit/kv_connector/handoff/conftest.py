import pytest

from tests.unit.kv_connector.handoff.hostile_rank import Scene


@pytest.fixture
def scene() -> Scene:
    """The transfer `t` is watched by the good rank; nothing is reserved."""
    return Scene()
