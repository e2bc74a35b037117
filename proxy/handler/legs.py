"""The two legs of a request: how each is run, and which outcome counts first.

While the decode node waits for KV, the prefill leg is the only one that can tell that none will come. So the legs are
raced: the decode node's first bytes settle the matter whatever the prefill leg does later; a prefill leg that failed
before ends the decode leg, which would wait in vain.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import TOKENS_TYPE
from baton.proxy.errors import FailureKind, NodeAnsweredError, UpstreamError
from baton.proxy.http.headers import find
from baton.proxy.http.response import UpstreamResponse
from baton.proxy.http.upstream import PendingRequest
from baton.proxy.http_server.cancel_scope import CancelScope
from baton.proxy.nodes.node import Node
from baton.proxy.planning.outcome import (
    DecodeFailed,
    DecodeOutcome,
    DecodeRefused,
    Opened,
    PrefillDone,
    PrefillFailed,
    PrefillOutcome,
    PrefillRefused,
)
from baton.proxy.planning.placement import Estimate
from baton.proxy.request.parse import ClientRequest
from baton.proxy.response.first_token_relay import FirstTokenRelay
from baton.proxy.resume.events import ERROR
from baton.proxy.resume.kept_tokens import KeptTokens
from baton.proxy.tracing.traces import Leg

# A decode node that will refuse too has the same request before it and says so at once; one that has all KV begins at
# once.
REFUSAL_GRACE_S: Final = 1.0
_TOKENS_TYPE: Final = TOKENS_TYPE.encode()
_BUSY: Final = frozenset((408, 429))
# vLLM says 501 of what it has not implemented, such as some URLs.
_REFUSALS: Final = frozenset((*range(400, 500), 501))
_ERROR_HEADERS: Final = (b"content-type", b"retry-after", b"www-authenticate")


class LegRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one node."""

    node: Node
    request: tuple[str, str, bytes, bytes]  # the arguments of `Upstream.send`
    leg: Leg
    asked: ClientRequest
    estimate: Estimate | None = None  # of the prompt, if the leg computes it
    is_optional: bool = False  # no client waits for it


def nothing() -> None:
    """Nothing is done at the first tokens of an answer."""


async def open_decode(
    sent: PendingRequest, kept: KeptTokens | None = None, on_tokens: Callable[[], None] = nothing
) -> DecodeOutcome:
    """Wait for the first bytes of a decode leg that could be relayed.

    `kept` gets the tokens of an answer that is not streamed; `on_tokens` is called when the first of these have come.
    """
    answer: UpstreamResponse | None = None
    outcome: DecodeOutcome | None = None
    try:
        answer = await sent.answer()
        streams = answer.is_stream and answer.status == 200
        if kept is not None and find(answer.headers, b"content-type") == _TOKENS_TYPE:
            first = await _read_ahead(answer, kept, on_tokens)
        else:
            first = await (answer.read_event() if streams else answer.read_all())
        outcome = _judge(answer, first)
    except UpstreamError as exc:
        outcome = DecodeFailed(exc.kind, str(exc))
    finally:
        if answer is not None and not isinstance(outcome, Opened):
            answer.close()
    return outcome


async def _read_ahead(answer: UpstreamResponse, kept: KeptTokens, on_tokens: Callable[[], None]) -> bytes:
    """Read the tokens that stand before a whole answer; return its body. The response gets the answer's own status and headers."""
    kept.begin_leg()
    on_tokens()
    while data := await answer.read_some():
        if (found := kept.take(data)) is not None:
            head, body = found
            answer.status = head.status
            answer.headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in head.headers]
            return body + await answer.read_all()
    raise UpstreamError(FailureKind.DISCONNECT, "its answer did not come behind its tokens")


async def run_prefill(
    sent: PendingRequest, *, timeout_s: float, relay: FirstTokenRelay | None = None
) -> PrefillOutcome:
    """Wait for the end of a prefill leg; `relay` gets its stream as it comes."""
    answer: UpstreamResponse | None = None
    try:
        async with asyncio.timeout(timeout_s):
            answer = await sent.answer()
            if relay is not None and answer.status == 200 and answer.is_stream:
                return await _relay_prefill(answer, relay)
            body = await answer.read_all()
    except UpstreamError as exc:
        return PrefillFailed(exc.kind, str(exc), may_be_pushed=relay is not None and relay.has_begun)
    except TimeoutError:
        return PrefillFailed(FailureKind.TIMEOUT, "it did not answer in time")
    finally:
        if answer is not None:
            answer.close()
    if answer.status == 200:
        return PrefillDone(perf_counter())
    if answer.status in _BUSY:
        return PrefillFailed(FailureKind.BUSY, f"it answered {answer.status}")
    if answer.status in _REFUSALS:
        return PrefillRefused(_answered(answer, body))
    return PrefillFailed(FailureKind.STATUS, f"it answered {answer.status}")


async def _relay_prefill(answer: UpstreamResponse, relay: FirstTokenRelay) -> PrefillOutcome:
    try:
        await answer.pour(lambda data, _: relay.take(answer, data), relay.client.wait_writable)
    except (*DECODE_ERRORS, ValueError, KeyError, TypeError):
        return PrefillFailed(FailureKind.PROTOCOL, "its stream is not one of vLLM's")
    part = relay.stream.part
    assert part is not None
    if part.broken is not None:
        return PrefillFailed(part.broken.how, part.broken.message)
    if not part.ended:
        return PrefillFailed(FailureKind.DISCONNECT, "its stream ended early", may_be_pushed=part.has_passed)
    return PrefillDone(relay.began_s or perf_counter(), is_whole=part.is_whole)


async def first_to_count(decode: Awaitable[DecodeOutcome], hopeful: "WhileHopeful") -> DecodeOutcome | PrefillOutcome:
    """Run the decode leg, in the caller's own task, unless the prefill leg ends in a way that makes waiting pointless."""
    with hopeful:
        return await decode
    return hopeful.prefill.result()


class WhileHopeful:
    """Runs a block until the prefill leg has failed; it is cancelled then, and left."""

    __slots__ = ("_is_settled", "_scope", "_timer", "prefill")

    def __init__(self, prefill: asyncio.Task[PrefillOutcome]) -> None:
        self.prefill = prefill
        self._is_settled = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._scope = CancelScope()
        self.prefill.add_done_callback(self._look)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.settle()
        return self._scope.end(kind)

    def settle(self) -> None:
        """The decode node has made tokens: how the prefill leg ends changes nothing any more."""
        self._is_settled = True  # a look may be on its way
        self.prefill.remove_done_callback(self._look)
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, prefill: asyncio.Task[PrefillOutcome]) -> None:
        if self._is_settled:
            return
        if prefill.cancelled() or prefill.exception() is not None:  # the latter is ours; `result` will raise it
            self._scope.cancel()
            return
        match prefill.result():
            case PrefillRefused() | PrefillFailed(may_be_pushed=True):
                self._timer = asyncio.get_running_loop().call_later(REFUSAL_GRACE_S, self._scope.cancel)
            case PrefillFailed() | PrefillDone(is_whole=True):
                self._scope.cancel()


def _judge(answer: UpstreamResponse, first: bytes) -> DecodeOutcome:
    if answer.status == 200:
        if not first:
            return DecodeFailed(FailureKind.EMPTY, "its answer has no body")
        return _judge_event(first) or Opened(answer, first)
    if answer.status in _BUSY:
        return DecodeFailed(FailureKind.BUSY, f"it answered {answer.status}", _answered(answer, first))
    if answer.status in _REFUSALS:
        return DecodeRefused(_answered(answer, first))
    answered = _answered(answer, first) if answer.status >= 500 and _is_openai_error(first) else None
    return DecodeFailed(FailureKind.STATUS, f"it answered {answer.status}", answered)


def _judge_event(first: bytes) -> DecodeFailed | None:
    """Find the error of an engine that failed before its first token: vLLM tells it inside of a stream with status 200.

    An error that is the client's own is an answer, and stays where vLLM put it.
    """
    if not first.startswith(ERROR):
        return None
    body = first.removeprefix(b"data: ").partition(b"\n")[0]
    if not _is_openai_error(body):
        return None
    status = msgspec.json.decode(body)["error"].get("code")
    if not isinstance(status, int) or not 500 <= status < 600:
        return None
    answered = NodeAnsweredError(status, body, [(b"content-type", b"application/json")])
    return DecodeFailed(FailureKind.STATUS, f"its stream began with an error {status}", answered)


def _answered(answer: UpstreamResponse, body: bytes) -> NodeAnsweredError:
    """Return a node's own error, its body replaced if it is not in OpenAI's shape."""
    kept = [(name, value) for name, value in answer.headers if name in _ERROR_HEADERS]
    if _is_openai_error(body):
        return NodeAnsweredError(answer.status, body, kept)
    return NodeAnsweredError(answer.status, headers=[pair for pair in kept if pair[0] != b"content-type"])


def _is_openai_error(body: bytes) -> bool:
    try:
        decoded = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return False
    return isinstance(decoded, dict) and isinstance(decoded.get("error"), dict)
