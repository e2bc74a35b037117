"""The ids of an answer's tokens, named to the proxy in the answer's stream, with which another node could go on.

They are taken where the engine's output reaches vLLM's API server, which makes text of it later, and stand in comments
before the next event. So no event holds text of a token that has not been named; ids of text held back come early.

The same hook tells the connector which of several answers a request is: vLLM gives all of them the same parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from baton.contracts.http import TOKENS_COMMENT
from baton.contracts.kv_transfer import CHOICE, FIELD
from baton.node.http.asgi import Message, Send

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.engine.parallel_sampling import ParentRequest

_LOGGED: Final = "baton_logged"  # an attribute of vLLM's `RequestState`
_PROMPT_DIGITS: Final = 6
_COMPLETION: Final = "cmpl-"  # how vLLM's ids of completions begin; they end with the number of the prompt


class TokenLog:
    """Tokens of one HTTP request's answer that have not been named yet."""

    def __init__(self, *, one_by_one: bool = False) -> None:
        """`one_by_one`: the server is to read one output of the engine's after the other."""
        self.one_by_one = one_by_one
        self.is_cut = False  # the server reads of an end that is not the answer's
        self._new: dict[int, list[int]] = {}  # by choice
        self._open: set[int] = set()

    @property
    def goes_on(self) -> bool:
        """Whether a choice has tokens, and has not ended by itself."""
        return bool(self._open)

    def add(self, choice: int, ids: Sequence[int], *, ended: bool) -> None:
        if ended:
            self._open.discard(choice)
        elif ids:
            self._open.add(choice)
        if ids:
            self._new.setdefault(choice, []).extend(ids)

    def read(self, output: Any) -> None:
        """The server makes events of an output of the engine's from now on."""
        parts = getattr(output, "outputs", ())
        self.is_cut = self.is_cut or any(getattr(part, "finish_reason", "") == "abort" for part in parts)

    def take(self) -> bytes:
        """Return comment lines that name what has come since the last call."""
        new, self._new = self._new, {}
        return b"".join(
            b"%b%d %b\n" % (TOKENS_COMMENT, one, ",".join(map(str, ids)).encode()) for one, ids in new.items()
        )


_log: ContextVar[TokenLog | None] = ContextVar("baton_token_log", default=None)


@contextmanager
def logged(log: TokenLog | None) -> Iterator[None]:
    """Have the tokens of requests that are made in this context go into a log."""
    outer = _log.set(log)
    try:
        yield
    finally:
        _log.reset(outer)


def name_tokens(send: Send, log: TokenLog) -> Send:
    """Return a `send` that puts comments with the new tokens' ids before the events of a stream, of which vLLM sends whole ones."""
    is_stream = False

    async def send_named(message: Message) -> None:
        nonlocal is_stream
        if message["type"] == "http.response.start":
            is_stream = message["status"] == 200 and _is_event_stream(message["headers"])
        elif is_stream and message.get("body") and (lines := log.take()):
            message = {**message, "body": lines + message["body"]}
        await send(message)

    return send_named


def _is_event_stream(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers)


def tap_outputs() -> None:
    """Have vLLM's output processor tell of tokens. In the API server's process; idempotent."""
    from vllm.v1.engine import FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    from baton.node.http.one_by_one import merge_nothing

    theirs, make = OutputProcessor.add_request, RequestState.make_request_output
    if theirs.__module__ == __name__:
        return

    def add_request(
        processor: "OutputProcessor",
        request: "EngineCoreRequest",
        prompt: str | None,
        parent_req: "ParentRequest | None" = None,
        request_index: int = 0,
        *more: Any,
        **named: Any,
    ) -> None:
        log = _log.get()
        if log is None:
            theirs(processor, request, prompt, parent_req, request_index, *more, **named)
            return
        choice = choice_of(request.external_req_id or "", parent_req.n if parent_req else 1, request_index)
        _tell_connector(request, choice)
        theirs(processor, request, prompt, parent_req, request_index, *more, **named)
        if (state := processor.request_states.get(request.request_id)) is not None:
            setattr(state, _LOGGED, (log, choice))
            if log.one_by_one and state.queue is not None:
                merge_nothing(state.queue, log.read)

    def make_request_output(
        state: "RequestState",
        new_token_ids: list[int],
        pooling_output: Any,
        finish_reason: FinishReason | None,
        *more: Any,
        **named: Any,
    ) -> Any:
        if found := getattr(state, _LOGGED, None):
            log, choice = found
            log.add(choice, new_token_ids, ended=finish_reason not in (None, FinishReason.ABORT))
        return make(state, new_token_ids, pooling_output, finish_reason, *more, **named)

    OutputProcessor.add_request = add_request
    RequestState.make_request_output = make_request_output


def choice_of(request_id: str, answers: int, answer: int) -> int:
    """Return the index that one of `answers` to each prompt has among all choices of its HTTP request.

    `request_id` is of one prompt, as vLLM's server names it: `cmpl-…-2` is the third prompt of a completion.
    """
    prompt = request_id.rpartition("-")[2] if request_id.startswith(_COMPLETION) else ""
    return (int(prompt) * answers if prompt.isdecimal() and len(prompt) <= _PROMPT_DIGITS else 0) + answer


def _tell_connector(request: "EngineCoreRequest", choice: int) -> None:
    sampling = request.sampling_params
    if sampling is not None and sampling.extra_args and FIELD in sampling.extra_args:
        request.sampling_params = own = copy(sampling)
        own.extra_args = {**sampling.extra_args, CHOICE: choice}
