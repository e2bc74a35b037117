from collections.abc import Iterator

import pytest

from tests.support.fake_device import Run
from tests.unit.model_runner.tokens.rig import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Nothing runs but what a thread waits for; the test itself takes."""
    made = Rig(Run.ON_WAIT)
    yield made
    made.transfer.stop()
    made.device.close()
