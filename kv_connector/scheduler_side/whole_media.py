"""vLLM's scheduler, for requests with images or sound that may have to be computed again.

vLLM 0.32 sends a worker no pixels of an item all of whose tokens are cached when its request begins: no encoder will
run for it. On a decode node that is every item of a prompt whose KV has come. But a preemption takes the KV away. A
worker with vLLM's V1 runner is not sent the request again, so that it would compute the prompt without the item, and
vLLM ends the engine. Here workers get every item whole.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class WholeMedia:
    """Mixed into a scheduler of vLLM's.

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
