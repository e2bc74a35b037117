"""Receives one message ahead of the step that wants it; the step waits when it first looks at a tensor.

    thread        receive n ── receive n + 1 ─────────── receive n + 2 ── …
    step n        prepare inputs ─ first use: wait for n ─ forward
    step n + 1                                              prepare inputs ─ first use: n + 1 is there ─ forward

Only a posted receive makes gloo's sender send, so a receive that is posted when its step begins puts the whole way on
the step's path. Messages are matched to steps by their order alone: the stage before sends one for each step that
computes, and each such step takes one.

The thread waits for the next message however long the engine is idle. Who waits for the thread is bounded.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from baton.model_runner.pipeline.handles import PipelineError, Posted, Tensors, receive_now

AHEAD = 1  # messages received before `recv` was called for them, at most


class ReceiveAhead:
    """Hands out messages in the order in which they were sent."""

    def __init__(self, post: Callable[..., Posted], *, timeout_s: float) -> None:
        """`post` waits for a message's head, then posts its receive; the first use of a tensor may wait for `timeout_s`."""
        self._post = post
        self._timeout_s = timeout_s
        self._may_receive = threading.Semaphore(AHEAD)
        self._arrived: queue.SimpleQueue[Posted | BaseException] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._how: dict[str, Any] = {}
        self._failure: BaseException | None = None
        self.taken = 0
        self.in_time = 0  # of those taken: had arrived before they were used

    def receive(self, **how: Any) -> Posted:
        """Ask for the next message, at once. Its dictionary is filled by the thread that waits for its one handle.

        Raises `PipelineError`: `how` is another than before: the message may be here already.
        """
        if self._thread is None:
            self._how = how
            self._thread = threading.Thread(target=self._run, name="pipeline-receive", daemon=True)
            self._thread.start()
        elif how != self._how:
            raise PipelineError(f"a message was received ahead with {self._how}, and is asked for with {how}")
        self._may_receive.release()
        tensors: Tensors = {}
        return Posted(tensors, [_FirstUse(self, tensors)], [])

    def take_message(self) -> Posted:
        """Wait for the next message. Raises `PipelineError`: the stage before is gone, or silent for `timeout_s`."""
        if self._failure is None:
            self.in_time += not self._arrived.empty()
            try:
                message = self._arrived.get(timeout=self._timeout_s)
            except queue.Empty:
                message = PipelineError(f"the previous pipeline stage has sent nothing for {self._timeout_s:g} s")
            if isinstance(message, Posted):
                self.taken += 1
                return message
            self._failure = message  # whatever comes later belongs to another step
        raise PipelineError(f"the step has no input: {self._failure}") from self._failure

    @torch.inference_mode()  # it counts per thread, and the tensors are used under it
    def _run(self) -> None:
        while True:
            self._may_receive.acquire()
            try:
                self._arrived.put(receive_now(self._post, self._how, self._timeout_s))
            except BaseException as exc:  # noqa: BLE001  # the thread's boundary: who waits for the message is told
                self._arrived.put(exc)
                return


class _FirstUse:
    """The handle that vLLM waits for when a tensor is first looked at."""

    def __init__(self, source: ReceiveAhead, tensors: Tensors) -> None:
        self._source = source
        self._tensors = tensors
        self._done = False

    def is_completed(self) -> bool:
        return self._done

    def wait(self) -> None:
        if self._done:
            return
        message = self._source.take_message()
        for finish in message.postprocess:
            finish()
        assert message.tensors is not None  # a group of several stages
        self._tensors.update(message.tensors)
        self._done = True
