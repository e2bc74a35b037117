"""Our model runner on a CUDA or ROCm device."""

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from baton.model_runner.runner.event_synced import EventSynced


class CudaRunner(EventSynced, GPUModelRunner):
    """vLLM's V1 runner, with tokens by `TokenTransfer`."""
