"""The workers on a CUDA or ROCm device: vLLM's own, with its model runner or with ours."""

from contextlib import nullcontext
from typing import Any

import torch
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker as GpuWorker

from baton.model_runner.runner.attribute_patch import in_place_of
from baton.model_runner.runner.event_synced import EventSynced
from baton.model_runner.worker import NodeWorker, TransferWorker


class ModelStream:
    """Runs the model on a stream of its own, off the device's default stream.

    Mooncake's TCP copies with synchronous `cudaMemcpy`, which goes to the legacy default stream: if the model computes
    there, each piece of 64 KiB queues behind all that has been launched. With several ranks vLLM leaves that stream by
    itself (`vllm.utils.torch_utils.current_stream`). A stream is current per thread, and vLLM makes the device ready,
    captures graphs and runs steps in one. torch's streams and the legacy default one do not wait for each other: what
    arrives on that must be waited for (`kv_connector/worker_side/landing.py`).
    """

    device: Any
    vllm_config: Any

    def init_device(self) -> None:
        """Leave the default stream once there is a model runner; not with pipeline stages: vLLM has left it by then.

        It does so in its first collective operation, and its V2 runner sends on the stream that it was made on.
        """
        super().init_device()  # type: ignore[misc]
        module = torch.get_device_module(self.device)
        current = module.current_stream(self.device)
        stages = self.vllm_config.parallel_config.pipeline_parallel_size
        if stages == 1 and current == module.default_stream(self.device):
            own = module.Stream(self.device)
            own.wait_stream(current)  # behind what has been issued so far
            module.set_stream(own)  # by which vLLM hears of it


class EngineWorker(ModelStream, NodeWorker, GpuWorker):
    """vLLM's GPU worker for a Baton node, with vLLM's model runner, V1 or V2."""


class CudaRunner(EventSynced, GPUModelRunner):
    """vLLM's V1 runner, with tokens by `TokenTransfer`."""


class Worker(TransferWorker, EngineWorker):
    """The same with `CudaRunner`."""

    def _make_model_runner(self) -> Any:
        return CudaRunner(self.vllm_config, self.device)  # called by vLLM from 0.32 on

    def init_device(self) -> None:
        """Have a vLLM that makes its runner in here make ours."""
        has_hook = hasattr(GpuWorker, "_make_model_runner")
        with nullcontext() if has_hook else in_place_of(gpu_model_runner, "GPUModelRunner", CudaRunner):
            super().init_device()
