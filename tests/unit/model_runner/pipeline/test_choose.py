"""Which way a stage's tensors travel."""

import pytest

from baton.model_runner.pipeline.choose import VARIABLE, transfer


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({}, "async"), ({VARIABLE: ""}, "async"), ({VARIABLE: "sync"}, "sync"), ({VARIABLE: "shm"}, "shm")],
)
def test_asynchronous_unless_the_environment_says_otherwise(environ: dict[str, str], expected: str) -> None:
    """The user need not ask for it; the others are there to be compared with."""
    assert transfer(environ) == expected


def test_an_unknown_way_stops_the_worker_with_its_name() -> None:
    """A slip of the pen must not choose for the user."""
    with pytest.raises(ValueError, match=r"BATON_PIPELINE_TRANSFER is 'asynch'; it can be async, sync, shm"):
        transfer({VARIABLE: "asynch"})
