"""Control loops that record what they hear."""

from collections.abc import Iterator

import pytest

from tests.support.control_loops import MakeLoop, recording_loops


@pytest.fixture
def loops() -> Iterator[MakeLoop]:
    """Makes loops that are stopped in the end."""
    with recording_loops() as make:
        yield make
