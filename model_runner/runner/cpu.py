"""Our model runner on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from baton.model_runner.runner.attribute_patch import in_place_of
from baton.model_runner.runner.event_synced import EventSynced


class CpuRunner(EventSynced, CPUModelRunner):
    """vLLM's V1 runner on a CPU, with tokens by `TokenTransfer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Under asynchronous scheduling vLLM's runner makes such an event; its CPU runner replaces `torch.Event` only.
        with in_place_of(torch.get_device_module("cuda"), "Event", _NoEvent):
            super().__init__(*args, **kwargs)


class _NoEvent:
    """An event of a device that is never late, as vLLM's CPU runner has it."""

    def __init__(self, *_: object, **__: object) -> None:
        self.record: Callable[..., None] = lambda *_: None
        self.synchronize: Callable[[], None] = lambda: None
