"""Tells the connector what a step takes away before vLLM touches it.

vLLM's V2 runner zeroes blocks and copies them (`update_requests`) before it calls `handle_preemptions`. Until that call
a prefill node counts a preempted prompt's blocks as its own, and may commit what the zeroing left (I2).
"""

from typing import Any, ClassVar

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from baton.model_runner.choose import WorkerRefusedError


class VoidsFirst:
    """Mixed into a worker. On V1, and in vLLM's warm-up, whose steps are no connector's, vLLM's own order is left alone."""

    voids_first: ClassVar[bool] = True  # what `baton.kv_connector.vllm_compat.runner_order` asks a worker class for
    use_v2_model_runner: bool

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step. On V2 the hook is called here and again by vLLM, which changes nothing."""
        if self.use_v2_model_runner and has_kv_transfer_group():
            get_kv_transfer_group().handle_preemptions(scheduler_output.kv_connector_metadata)
        return super().execute_model(scheduler_output, *args, **kwargs)  # type: ignore[misc]


def refuse_v2(worker: VoidsFirst) -> None:
    """Refuse a worker with `TokenTransfer` for which vLLM has chosen its V2 runner, which would run without it."""
    if worker.use_v2_model_runner:
        raise WorkerRefusedError(
            f"{type(worker).__module__}.{type(worker).__name__} brings sampled tokens by TokenTransfer, which needs vLLM's V1 "
            "runner, and vLLM has chosen V2: set VLLM_USE_V2_MODEL_RUNNER=0 and leave out what V1 lacks (watermarks), or use "
            "EngineWorker (on a node: model_runner: engine)"
        )
