"""vLLM's scheduler, for requests that the engine ends after their first token, while the server above it thinks that they go on.

Such a request's stream goes from the prefill node to the client, which reads there what one server would stream up to the first token:
text that may begin a stop string is held back, and nothing says that the answer has ended. For the engine it ends as one of `max_tokens`
1 does: no step is computed after the prompt's, and its blocks are held until they are pushed. The server above is told of the end a
little later, as of an abort.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.request import Request

# The server must have sent the first token by then: of what it has not read yet vLLM makes one piece of its stream.
END_AFTER_S: Final = 0.1
_GOES_ON: Final = "baton_goes_on"  # an attribute of vLLM's `Request`

Outputs = dict[int, EngineCoreOutputs]


class _End(NamedTuple):
    due_at_s: float  # monotonic
    client: int  # the server process
    request_id: str
    trace_headers: Mapping[str, str] | None  # without them vLLM would begin a trace of its own


def end_after_first_token(request: "Request") -> None:
    """Have a request that has just arrived end with its first token, which does not say so unless the client's own parameters end it there."""
    if request.max_tokens > 1:
        request.max_tokens = 1
        setattr(request, _GOES_ON, True)


class FirstOutput:
    """Mixin of a scheduler of vLLM's."""

    max_model_len: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._marked: list[Request] = []
        self._ends: deque[_End] = deque()

    def add_request(self, request: "Request") -> None:
        """Take a request in; the connector is asked about it here, and may mark it."""
        super().add_request(request)  # type: ignore[misc]
        if _GOES_ON in request.__dict__:
            self._marked.append(request)

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Outputs:
        """Take in a step; take the end off first tokens, and tell of ends that are due."""
        outputs: Outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if ended := [request for request in self._marked if request.is_finished()]:
            self._marked = [request for request in self._marked if not request.is_finished()]
            self._leave_open({request.request_id for request in ended if self._ends_by_us(request)}, outputs)
        self._send_ends(outputs)
        return outputs

    def has_requests(self) -> bool:
        """Whether the engine has to go on stepping: it is a step that tells of an end."""
        return bool(self._ends) or super().has_requests()  # type: ignore[misc]

    def _ends_by_us(self, request: "Request") -> bool:
        """Whether nothing but our bound on its tokens has ended a request: no end of the model's or client's, no full context."""
        return bool(request.status == RequestStatus.FINISHED_LENGTH_CAPPED and request.num_tokens < self.max_model_len)

    def _leave_open(self, request_ids: set[str], outputs: Outputs) -> None:
        due_at_s = time.monotonic() + END_AFTER_S
        for client, those in outputs.items():
            for output in those.outputs:
                if output.request_id in request_ids:
                    output.finish_reason = None
                    self._ends.append(_End(due_at_s, client, output.request_id, output.trace_headers))

    def _send_ends(self, outputs: Outputs) -> None:
        while self._ends and self._ends[0].due_at_s <= time.monotonic():
            end = self._ends.popleft()
            add_end(outputs, end.client, end.request_id, FinishReason.ABORT, end.trace_headers)


def add_end(
    outputs: Outputs, client: int, request_id: str, reason: FinishReason, trace_headers: Mapping[str, str] | None
) -> None:
    """Tell a server process of a request's end, without another token."""
    end = EngineCoreOutput(request_id=request_id, new_token_ids=[], finish_reason=reason, trace_headers=trace_headers)
    of_client = outputs.setdefault(client, EngineCoreOutputs())
    of_client.outputs = [*of_client.outputs, end]
