"""The worker on an Ascend NPU: that of vllm-ascend."""

from typing import Any

from vllm_ascend.worker.worker import NPUWorker  # type: ignore[import-not-found,unused-ignore]  # absent elsewhere

from model_runner.lifetime import end_with_parent


class Worker(NPUWorker):
    """vllm-ascend's worker for a Baton node."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent()
        super().__init__(*args, **kwargs)
