"""Our model runner on an Ascend NPU."""

from typing import ClassVar

from vllm_ascend.worker import model_runner_v1  # type: ignore[import-not-found,unused-ignore]  # absent elsewhere
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner  # type: ignore[import-not-found,unused-ignore]

from baton.model_runner.runner.event_synced import ListsEventSynced


class NpuRunner(ListsEventSynced, NPUModelRunner):
    """vllm-ascend's V1 runner, with ids by `TokenTransfer`."""

    output_module: ClassVar = model_runner_v1
