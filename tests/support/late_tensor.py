"""A tensor on the fake asynchronous device, for code that is not ours: it runs unchanged, and what makes it wait is counted.

    world = LateWorld(device)
    ids = world.sampled(torch.tensor([[7]]))    # the model's stream fills it late
    ids.tolist()                                # blocks: everything runs, and the audit is told which line it was
    ids.to("cpu", non_blocking=True)            # issued to the current stream; the host's memory is filled late

It says that it lies on a CUDA device. Blocking are the calls of which torch's synchronisation debug mode warns.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.async_utils import AsyncOutput

from baton.model_runner.audit import SyncAudit, short
from tests.support.fake_device import Event, FakeDevice

_T = torch.Tensor
_READS = {_T.tolist, _T.item, _T.cpu, _T.numpy, _T.__bool__, _T.__int__, _T.nonzero}
_DEVICE = torch.device("cuda", 0)


class LateWorld:
    """The device behind some tensors, its streams, and who counts."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.compute = self.current = device.stream()
        self.audit = SyncAudit()
        self.event_waits = 0
        self.copies_to_host = 0  # that were issued, and did not block

    def sampled(self, values: torch.Tensor) -> "LateTensor":
        """Return a tensor that the model's stream fills with these values."""
        plain = torch.full_like(values, -99)
        self.compute.launch(lambda: _assign(plain, values))
        return self.held(plain)

    def held(self, plain: torch.Tensor) -> "LateTensor":
        """Return a tensor on the device that has these values now, and what is done with it at once; copies of it are late."""
        made = plain.as_subclass(LateTensor)
        made.world = self
        return made

    def block(self) -> None:
        """Do what a pageable copy does: wait for everything; and tell."""
        self.audit.note(_engine_line())
        self.device.synchronize()

    def event(self, *_: object, **__: object) -> "LateEvent":
        """Stand in for the constructor of `torch.cuda.Event`."""
        return LateEvent(self)

    @contextmanager
    def as_cuda(self) -> Iterator[None]:
        """Let `torch.cuda` mean this device."""

        @contextmanager
        def stream(wanted: Any) -> Iterator[None]:
            before, self.current = self.current, wanted.stream
            try:
                yield
            finally:
                self.current = before

        with (
            patch.object(torch.cuda, "Event", self.event),
            patch.object(torch.cuda, "current_stream", lambda: SimpleNamespace(stream=self.current)),
            patch.object(torch.cuda, "stream", stream),
            patch.object(torch.cuda, "set_stream", self._go_on_with),
        ):
            yield

    def _go_on_with(self, wanted: Any) -> None:
        self.current = wanted.stream

    def v2_output(
        self, ids: list[list[int]], counts: list[int], logprobs: LogprobsTensors | None = None
    ) -> AsyncOutput:
        """What vLLM's V2 runner returns: its own class, of tensors that the device has yet to fill."""
        sampled: Any = SimpleNamespace(
            sampled_token_ids=self.sampled(torch.tensor(ids, dtype=torch.int32)),
            logprobs_tensors=logprobs,
            num_nans=None,
            sampling_mask_tensors=None,
        )
        step: Any = SimpleNamespace(
            prompt_logprobs_dict={}, prompt_token_id_logprobs_dict={}, logprobs=None, req_ids=["a", "b"][: len(ids)]
        )
        accepted = self.sampled(torch.tensor(counts, dtype=torch.int32))
        with self.as_cuda(), patch.object(torch.cuda, "Event", side_effect=self.event) as event:
            output = AsyncOutput(step, sampled, accepted, self.main_stream(), self.copy_stream(), False, None)
        event.assert_called_once_with(blocking=True)
        return output

    def main_stream(self) -> SimpleNamespace:
        """The model's stream as vLLM uses it."""
        return SimpleNamespace(stream=self.compute)

    def copy_stream(self) -> SimpleNamespace:
        """A stream as vLLM uses it."""
        made = self.device.stream()
        return SimpleNamespace(stream=made, wait_stream=lambda other: other.stream.record_event().wait(made))


class LateEvent:
    """`torch.Event` on the current stream; counts who waits."""

    def __init__(self, world: LateWorld) -> None:
        self._world = world
        self._event: Event = world.device.event()

    def record(self, stream: SimpleNamespace | None = None) -> None:
        self._event.record(self._world.current if stream is None else stream.stream)

    def synchronize(self) -> None:
        self._world.event_waits += 1
        self._event.synchronize()


class LateTensor(torch.Tensor):
    """See the head of this file."""

    world: LateWorld

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Decide whether a call waits, is issued, or is the device's own business."""
        kwargs = kwargs or {}
        world = next(arg.world for arg in args if isinstance(arg, LateTensor))
        if func == _T.device.__get__:
            return _DEVICE
        with torch._C.DisableTorchFunctionSubclass():
            plain = [arg.as_subclass(_T) if isinstance(arg, LateTensor) else arg for arg in args]
        to_host = (func == _T.to and "cpu" in args[1:2]) or (func == _T.copy_ and not isinstance(args[0], LateTensor))
        if to_host and kwargs.get("non_blocking"):
            target = torch.empty_like(plain[0]) if func == _T.to else plain[0]
            source = plain[0] if func == _T.to else plain[1]
            world.copies_to_host += 1
            world.current.launch(lambda: _assign(target, source))
            return target
        if to_host or func in _READS:
            world.block()
            return func(*plain, **kwargs)
        if func == _T.__getitem__ and str(getattr(args[1], "dtype", "")) in ("torch.bool", "bool"):
            world.block()  # how many there are decides the result's shape
        found = func(*plain, **kwargs)
        if isinstance(found, torch.Tensor):
            found = found.as_subclass(LateTensor)
            found.world = world
        return found


def _assign(target: torch.Tensor, values: torch.Tensor) -> None:
    target.copy_(values)


def _engine_line() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and "site-packages/vllm" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else "outside of vLLM"
