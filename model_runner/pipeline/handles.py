"""Waiting for what was posted: bounded, and with an error that says which neighbour is missing."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch.distributed import Work

SENDING: Final = "sending to the next pipeline stage"
RECEIVING: Final = "receiving from the previous pipeline stage"
Tensors = dict[str, torch.Tensor | Any]


class Handle(Protocol):
    """What vLLM makes of a posted message, or we do."""

    def is_completed(self) -> bool:
        """Whether it has ended. Over gloo this cannot be told: ask `wait`."""

    def wait(self) -> Any:
        """Return when it has ended."""


class Posted(NamedTuple):
    """A posted receive, as vLLM's `irecv_tensor_dict` returns it."""

    tensors: Tensors | None
    handles: list[Handle]
    postprocess: list[Callable[[], None]]  # puts the slices of several tensor-parallel ranks together; main thread only


class PipelineError(Exception):
    """A neighbouring stage is gone, or is not heard."""


@contextmanager
def told_as(what: str) -> Iterator[None]:
    """Tell a failure of torch's as ours; gloo raises plain `RuntimeError`s. Raises `PipelineError`: there was one."""
    try:
        yield
    except RuntimeError as exc:
        raise PipelineError(f"{what} failed: {exc}") from exc


def wait_for(handles: Iterable[Handle], timeout_s: float, what: str) -> None:
    """Wait until every handle is done, once: gloo's second wait for the same message never returns.

    vLLM's handle of a message's head takes no timeout. It is waited for last: when the tensors have arrived, so has it.
    Raises `PipelineError`: the neighbour has ended, or took no part for `timeout_s`; gloo then closes the connection.
    """
    timeout = timedelta(seconds=timeout_s)
    with told_as(what):
        for handle in sorted(handles, key=lambda handle: not isinstance(handle, Work)):
            if isinstance(handle, Work):
                handle.wait(timeout)
            else:
                handle.wait()


def receive_now(post: Callable[..., Posted], how: dict[str, Any], timeout_s: float) -> Posted:
    """Post a receive and wait for its message. Raises `PipelineError`."""
    with told_as(RECEIVING):
        tensors, handles, postprocess = post(**how)
    wait_for(handles, timeout_s, RECEIVING)
    return Posted(tensors, [], postprocess)
