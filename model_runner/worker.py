"""What a Baton node's worker has on every device; `cpu`, `cuda` and `npu` mix it into vLLM's worker classes."""

import ctypes
import signal
from typing import Any, ClassVar

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

from baton.model_runner.choose import WorkerRefusedError
from baton.model_runner.multi_host import MultiHostWorker
from baton.model_runner.reports import Reports
from baton.model_runner.start_tokens import StartTokens
from baton.model_runner.watched import Watched

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class VoidsFirst:
    """Tells the connector what a step takes away before vLLM touches it.

    vLLM's V2 runner zeroes blocks and copies them (`update_requests`) before it calls `handle_preemptions`. Until that
    call a prefill node counts a preempted prompt's blocks as its own, and may commit what the zeroing left (I2). On V1,
    and in vLLM's warm-up, whose steps are no connector's, vLLM's own order is left alone.
    """

    voids_first: ClassVar[bool] = True  # what `baton.kv_connector.vllm_compat.runner_order` asks a worker class for
    use_v2_model_runner: bool

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step. On V2 the hook is called here and again by vLLM, which changes nothing."""
        if self.use_v2_model_runner and has_kv_transfer_group():
            get_kv_transfer_group().handle_preemptions(scheduler_output.kv_connector_metadata)
        return super().execute_model(scheduler_output, *args, **kwargs)  # type: ignore[misc]


class NodeWorker(MultiHostWorker, Watched, Reports, VoidsFirst, StartTokens):
    """Mixed into vLLM's worker. Its process ends with the one that started it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent()
        super().__init__(*args, **kwargs)


class TransferWorker:
    """Mixed into a worker whose model runner is ours, with tokens by `TokenTransfer`."""

    use_v2_model_runner: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the worker. Raises `WorkerRefusedError`: vLLM has chosen its V2 runner, which would run without ours."""
        super().__init__(*args, **kwargs)
        if self.use_v2_model_runner:
            raise WorkerRefusedError(
                f"{type(self).__module__}.{type(self).__name__} brings sampled tokens by TokenTransfer, which needs vLLM's V1 "
                "runner, and vLLM has chosen V2: set VLLM_USE_V2_MODEL_RUNNER=0 and leave out what V1 lacks (watermarks), or "
                "use EngineWorker (on a node: model_runner: engine)"
            )


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it dies.

    An engine that outlives its API server would keep the node's ports, and its peers would take it for alive.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
