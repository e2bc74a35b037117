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

    Mooncake's TCP copies between GPU and host memory with synchronous `cudaMemcpy`, which goes to the legacy default
    stream: if the model computes there, each piece of 64 KiB queues behind everything that has been launched. With
    several ranks vLLM leaves that stream by itself (`vllm.utils.torch_utils.current_stream`); a rank that is alone stays
    on it.

    A stream is current per thread. vLLM makes the device ready, captures graphs and runs steps in one thread, so it is
    set once and for good there, as vLLM does it. Streams of torch do not wait for the legacy default stream, nor does
    that wait for them: what arrives on it must be waited for (`kv_connector/worker_side/landing.py`).
    """

    device: Any
    vllm_config: Any

    def init_device(self) -> None:
        """Leave the default stream as soon as there is a model runner.

        Not with pipeline stages: vLLM's V2 runner remembers the stream that it was made on, to send between stages.
        vLLM has left the default stream before that, in its first collective operation.
        """
        super().init_device()  # type: ignore[misc]
        if self.vllm_config.parallel_config.pipeline_parallel_size == 1:
            leave_default_stream(self.device, torch.get_device_module(self.device))


class EngineWorker(ModelStream, NodeWorker, GpuWorker):
    """vLLM's GPU worker for a Baton node, with vLLM's model runner, V1 or V2."""


class CudaRunner(EventSynced, GPUModelRunner):
    """vLLM's V1 runner, with tokens by `TokenTransfer`."""


class Worker(TransferWorker, EngineWorker):
    """The same with `CudaRunner`."""

    def _make_model_runner(self) -> Any:
        """Make our runner where vLLM makes its own, from 0.32 on."""
        return CudaRunner(self.vllm_config, self.device)

    def init_device(self) -> None:
        """Have a vLLM that makes its runner in here make ours."""
        has_hook = hasattr(GpuWorker, "_make_model_runner")
        with nullcontext() if has_hook else in_place_of(gpu_model_runner, "GPUModelRunner", CudaRunner):
            super().init_device()


def leave_default_stream(device: torch.device, module: Any) -> None:
    """Let the calling thread issue to a new stream, behind what it has issued so far, unless it has left already.

    `module` is torch's for the device; by its `set_stream` vLLM hears of the stream.
    """
    current = module.current_stream(device)
    if current == module.default_stream(device):
        own = module.Stream(device)
        own.wait_stream(current)
        module.set_stream(own)
