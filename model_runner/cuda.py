"""The workers on a CUDA or ROCm device: vLLM's own, with its model runner or with ours."""

from contextlib import nullcontext
from typing import Any

from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_worker import Worker as GpuWorker

from baton.model_runner.model_stream import ModelStream
from baton.model_runner.multi_host import MultiHostWorker
from baton.model_runner.parent_death import end_with_parent
from baton.model_runner.reports import Reports
from baton.model_runner.start_tokens import StartTokens
from baton.model_runner.voids_first import VoidsFirst, refuse_v2
from baton.model_runner.watched import Watched


class EngineWorker(ModelStream, MultiHostWorker, Watched, Reports, VoidsFirst, StartTokens, GpuWorker):
    """vLLM's GPU worker for a Baton node, with vLLM's model runner, V1 or V2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent()
        super().__init__(*args, **kwargs)


class Worker(EngineWorker):
    """The same, with vLLM's V1 runner and tokens by `TokenTransfer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_v2(self)

    def _make_model_runner(self) -> Any:
        """Make our runner where vLLM makes its own, from 0.32 on."""
        from baton.model_runner.runner.cuda import CudaRunner

        return CudaRunner(self.vllm_config, self.device)

    def init_device(self) -> None:
        """Have a vLLM that makes its runner in here make ours."""
        from baton.model_runner.runner.attribute_patch import in_place_of
        from baton.model_runner.runner.cuda import CudaRunner

        has_hook = hasattr(GpuWorker, "_make_model_runner")
        with nullcontext() if has_hook else in_place_of(gpu_model_runner, "GPUModelRunner", CudaRunner):
            super().init_device()
