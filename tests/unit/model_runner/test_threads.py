"""How many threads a CPU worker computes with."""

import pytest

from baton.model_runner.cpu import compute_threads


@pytest.mark.parametrize(
    ("environ", "current", "cores", "expected"),
    [
        ({}, 2, 4, 2),
        ({}, 8, 2, 2),  # forked from a process that had all cores
        ({"OMP_NUM_THREADS": "1"}, 8, 2, 1),  # set after OpenMP was loaded, in the zygote
        ({"OMP_NUM_THREADS": "16"}, 8, 2, 2),
        ({"OMP_NUM_THREADS": "0"}, 2, 4, 2),
        ({"OMP_NUM_THREADS": "2,1"}, 3, 4, 3),  # nested levels: left to OpenMP
    ],
)
def test_the_environment_counts_but_never_beyond_the_cores(
    environ: dict[str, str], current: int, cores: int, expected: int
) -> None:
    """A forked process has its parent's thread count until it is told otherwise."""
    assert compute_threads(environ, current, cores) == expected
