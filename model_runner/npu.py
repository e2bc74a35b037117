"""The workers on an Ascend NPU: that of vllm-ascend, with its model runner or with ours."""

from typing import Any

from vllm_ascend.worker import worker as ascend_worker  # type: ignore[import-not-found,unused-ignore]  # absent elsewhere
from vllm_ascend.worker.worker import NPUWorker  # type: ignore[import-not-found,unused-ignore]

from model_runner.lifetime import end_with_parent
from model_runner.reports import Reports
from model_runner.ties import Tied


class EngineWorker(Tied, Reports, NPUWorker):
    """vllm-ascend's worker for a Baton node, with its model runner."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent()
        super().__init__(*args, **kwargs)


class Worker(EngineWorker):
    """The same, with ids by `TokenTransfer` where it runs its V1 runner."""

    def init_device(self) -> None:
        """Make our runner where vllm-ascend's code makes its own."""
        from model_runner.runner.npu import NpuRunner
        from model_runner.runner.place import in_place_of

        with in_place_of(ascend_worker, "NPUModelRunner", NpuRunner):
            super().init_device()
