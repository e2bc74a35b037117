"""Puts our transfers in the place of vLLM's, in the group of one process's pipeline stages.

vLLM's worker asks the group to post each message (`isend_tensor_dict`, `irecv_tensor_dict`), and looks at what it got
when it first uses it (`AsyncIntermediateTensors`), on every device. On a CPU its group answers with a synchronous copy
through shared memory and no handles. Only the answers are replaced here.
"""

import copy
from collections import deque
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import torch.distributed

from baton.model_runner.pipeline.handles import SENDING, Handle, Posted, Tensors, receive_now, told_as, wait_for
from baton.model_runner.pipeline.receive_ahead import ReceiveAhead
from baton.model_runner.pipeline.send_window import SendWindow

VARIABLE: Final = "BATON_PIPELINE_TRANSFER"
Transfer = Literal["async", "sync", "shm"]
"""`async`: sent and received while a stage computes. `sync`: the same messages, each waited for at once; only a
measurement wants it. `shm`: vLLM's own on a CPU, which spins on shared memory and needs both stages on one machine."""
IDLE: Final = timedelta(days=365)  # a receive is posted ahead, however long the engine is idle then


class Counts(NamedTuple):
    """What one stage has sent and received asynchronously."""

    sent: int = 0
    send_handles: int = 0
    received: int = 0
    received_in_time: int = 0  # had arrived before they were used


def chosen_transfer(environ: Mapping[str, str]) -> Transfer:
    """Return what the environment asks for, `async` if nothing. Raises `ValueError`: there is no such way."""
    asked = environ.get(VARIABLE) or "async"
    if asked not in get_args(Transfer):
        raise ValueError(f"{VARIABLE} is {asked!r}; it can be {', '.join(get_args(Transfer))}")
    return cast("Transfer", asked)


def install(group: Any, transfer: Transfer, step_timeout_s: float) -> Callable[[], Counts]:
    """Let a group of pipeline stages, vLLM's `GroupCoordinator`, hand their tensors on in this way; return what counts the messages.

    Each process of the group calls this. `step_timeout_s`: how long a message may take, once it is waited for.
    """
    if group.world_size == 1 or transfer == "shm":
        return Counts
    lane = _gloo_lane(group)
    if transfer == "sync":
        _wait_at_once(group, lane, step_timeout_s)
        return Counts
    sends = SendWindow(lane.isend_tensor_dict, timeout_s=step_timeout_s)
    receives = ReceiveAhead(lane.irecv_tensor_dict, timeout_s=step_timeout_s)
    group.isend_tensor_dict, group.irecv_tensor_dict = sends.send, receives.receive
    return lambda: Counts(sends.sent, sends.handles, receives.taken, receives.in_time)


def _gloo_lane(group: Any) -> Any:
    """Return a copy of the group that sends over gloo connections of its own, which may be idle for long.

    A waiting receive counts against its group's timeout, after which gloo closes all of the group's connections. It
    cannot be changed later (`_set_pg_timeout` does nothing for gloo).
    """
    lane = copy.copy(group)
    lane.cpu_group = lane.device_group = torch.distributed.new_group(
        group.ranks, timeout=IDLE, backend="gloo", use_local_synchronization=True
    )
    lane.use_cpu_custom_send_recv = False
    # vLLM drops what it keeps of a send when gloo calls it completed, after a wait without bound. We keep our own.
    lane._pending_isends = deque(maxlen=0)
    return lane


def _wait_at_once(group: Any, lane: Any, timeout_s: float) -> None:
    def send(tensors: Tensors, **how: Any) -> list[Handle]:
        with told_as(SENDING):
            handles = lane.isend_tensor_dict(tensors, **how)
        wait_for(handles, timeout_s, SENDING)
        return []

    def receive(**how: Any) -> Posted:
        message = receive_now(lane.irecv_tensor_dict, how, timeout_s)
        for finish in message.postprocess:
            finish()
        return message._replace(postprocess=[])

    group.isend_tensor_dict, group.irecv_tensor_dict = send, receive
