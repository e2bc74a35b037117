"""The workers on a CUDA or ROCm device: vLLM's own, with its model runner or with ours."""

from typing import Any

from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_worker import Worker as GpuWorker

from model_runner.lifetime import end_with_parent
from model_runner.reports import Reports
from model_runner.ties import Tied


class EngineWorker(Tied, Reports, GpuWorker):
    """vLLM's GPU worker for a Baton node, with vLLM's model runner."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent()
        super().__init__(*args, **kwargs)


class Worker(EngineWorker):
    """The same, with tokens by `TokenTransfer` where vLLM runs its V1 runner."""

    def init_device(self) -> None:
        """Make our runner where vLLM's code makes its own."""
        from model_runner.runner.cuda import CudaRunner
        from model_runner.runner.place import in_place_of

        with in_place_of(gpu_model_runner, "GPUModelRunner", CudaRunner):
            super().init_device()
