"""The worker on a CUDA or ROCm device: vLLM's own."""

from typing import Any

from vllm.v1.worker.gpu_worker import Worker as GpuWorker

from model_runner.lifetime import end_with_parent


class Worker(GpuWorker):
    """vLLM's GPU worker for a Baton node."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent()
        super().__init__(*args, **kwargs)
