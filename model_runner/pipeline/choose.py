"""Which way the stages of a pipeline hand their tensors on: one environment variable, read once."""

from collections.abc import Mapping
from typing import Final, Literal, cast, get_args

VARIABLE: Final = "BATON_PIPELINE_TRANSFER"
Transfer = Literal["async", "sync", "shm"]
"""`async`: sent and received while a stage computes. `sync`: the same messages, each waited for at once; only a
measurement wants it. `shm`: vLLM's own on a CPU, which spins on shared memory and needs both stages on one machine."""


def transfer(environ: Mapping[str, str]) -> Transfer:
    """Return what the environment asks for; `async` unless it says otherwise.

    Raises:
        ValueError: there is no such way.
    """
    asked = environ.get(VARIABLE) or "async"
    if asked not in get_args(Transfer):
        raise ValueError(f"{VARIABLE} is {asked!r}; it can be {', '.join(get_args(Transfer))}")
    return cast("Transfer", asked)
