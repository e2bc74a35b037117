"""vLLM's scheduler as Baton's nodes run it: the one that vLLM would choose, with what requests of two nodes need.

`vllm --scheduler-cls baton.kv_connector.scheduler_side.scheduler.make_scheduler`
"""

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from baton.kv_connector.scheduler_side.first_output import FirstOutput
from baton.kv_connector.scheduler_side.start_tokens import StartTokens

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

MAKE_SCHEDULER: Final = f"{__name__}.make_scheduler"


def has_our_scheduler(vllm_config: "VllmConfig") -> bool:
    return bool(vllm_config.scheduler_config.scheduler_cls == MAKE_SCHEDULER)


def make_scheduler(vllm_config: "VllmConfig", **more: Any) -> Scheduler:
    """Make the scheduler that vLLM would choose for a configuration, with ours: prefill nodes use `FirstOutput`, decode nodes `StartTokens`, both `WholeMedia`.

    It keeps the cache's settings as they are now. When an engine has been made, vLLM 0.32 checks its configuration once
    more, and on a CPU a block then has 128 tokens again, where recurrent layers have had it made longer. A chunk that
    ends with a block of another length leaves a state in the prefix cache that is not the one of the cached tokens.

    Source:
        `EngineCoreProc._perform_handshakes`, `CpuPlatform.check_and_update_config` and
        `Scheduler._mamba_block_aligned_split` of vLLM.
    """
    kind = _AsyncScheduler if vllm_config.scheduler_config.async_scheduling else _Scheduler
    own = copy(vllm_config)
    own.cache_config = copy(vllm_config.cache_config)
    return kind(vllm_config=own, **more)


class WholeMedia:
    """Mixed into a scheduler of vLLM's, for requests with images or sound that may have to be computed again.

    vLLM 0.32 sends a worker no pixels of an item all of whose tokens are cached when its request begins: no encoder
    will run for it. On a decode node that is every item of a prompt whose KV has come. But a preemption takes the KV
    away. A worker with vLLM's V1 runner is not sent the request again, so that it would compute the prompt without the
    item, and vLLM ends the engine. Here workers get every item whole.

    Source:
        `strip_covered_mm_data` of vLLM, called by `NewRequestData.from_request`.
    """

    requests: "dict[str, Request]"

    def schedule(self, *args: Any, **kwargs: Any) -> "SchedulerOutput":
        """Schedule a step; put back what was taken off the items of its new requests."""
        output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for new in output.scheduled_new_reqs:
            if new.mm_features:
                new.mm_features = self.requests[new.req_id].mm_features
        return output


class _Scheduler(StartTokens, FirstOutput, WholeMedia, Scheduler):
    pass


class _AsyncScheduler(StartTokens, FirstOutput, WholeMedia, AsyncScheduler):
    pass
