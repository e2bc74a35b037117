"""The workers on a CPU: vLLM's own, plus what it lacks for pinned cores, AMX, and pipeline stages; and one with our runner."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm import envs
from vllm.distributed.parallel_state import get_pp_group
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from baton.model_runner.pipeline import lane
from baton.model_runner.runner.attribute_patch import in_place_of
from baton.model_runner.runner.event_synced import EventSynced
from baton.model_runner.worker import NodeWorker, TransferWorker


class EngineWorker(NodeWorker, CPUWorker):
    """vLLM's CPU worker for a Baton node, with vLLM's model runner."""

    def init_device(self) -> None:
        """Use no more threads than this process has cores, or than it was told to.

        One forked after torch's import has its parent's count. From here on vLLM makes `set_num_threads` do nothing.
        """
        torch.set_num_threads(compute_threads(os.environ, torch.get_num_threads(), len(os.sched_getaffinity(0))))
        ask_for_amx()
        super().init_device()
        transfer = lane.chosen_transfer(os.environ)
        self._count = lane.install(get_pp_group(), transfer, float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS))

    def pipeline_counts(self) -> dict[str, int]:
        """Return what this stage has sent and received asynchronously, for vLLM's `collective_rpc`."""
        return self._count()._asdict()

    def compile_or_warm_up_model(self) -> Any:
        """Allocate what a later stage receives into; vLLM does it in a dummy run, which an eager CPU server skips.

        Its first request would fail in `GPUModelRunner.sync_and_gather_intermediate_tensors`.
        """
        result = super().compile_or_warm_up_model()
        runner = self.model_runner
        if not get_pp_group().is_first_rank and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
            )
        return result


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


class Worker(TransferWorker, EngineWorker):
    """The same with `CpuRunner`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ask_for_async_scheduling(self.vllm_config, os.environ)

    def init_device(self) -> None:
        with in_place_of(cpu_worker, "CPUModelRunner", CpuRunner):
            super().init_device()


def compute_threads(environ: Mapping[str, str], current: int, cores: int) -> int:
    """Return how many threads torch shall compute with: `OMP_NUM_THREADS` if it is set, never more than cores."""
    asked = environ.get("OMP_NUM_THREADS", "")
    return min(int(asked) if asked.isdecimal() and int(asked) else current, cores)


def ask_for_async_scheduling(vllm_config: Any, environ: Mapping[str, str]) -> None:
    """Have vLLM schedule a step ahead, if `BATON_CPU_ASYNC_SCHEDULING` is 1: to test our output with a real engine.

    On a CPU that gains nothing, and vLLM turns it off. The worker must live in the engine's process (one rank), which
    makes its scheduler after its worker.
    """
    if environ.get("BATON_CPU_ASYNC_SCHEDULING") == "1" and vllm_config.speculative_config is None:
        vllm_config.scheduler_config.async_scheduling = True


def ask_for_amx() -> None:
    """Ask the kernel for AMX's tile registers, where this CPU has them; it grants them per process and on request.

    vLLM's attention uses them without asking (`CPUAttentionBackendImpl`, ISA "amx"). A server that computes prompts
    has them by then, since oneDNN asks in its first large matrix product. A decode node's first forward pass is over
    one token, so without this it dies of an illegal instruction.
    """
    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        raise RuntimeError("this CPU has AMX, but the kernel does not grant its tile registers; vLLM needs them")
