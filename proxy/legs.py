"""The two legs of a request: how each is run, and which outcome counts first.

While the decode node waits for KV, the prefill leg is the only one that can tell that none will come. So the legs are
raced: the decode node's first bytes settle the matter whatever the prefill leg does later; a prefill leg that failed
before ends the decode leg, which would wait in vain.
"""

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import msgspec

from proxy.errors import Kind, NodeAnsweredError, UpstreamError
from proxy.http1.answer import Answer
from proxy.node import Node
from proxy.outcome import (
    DecodeFailed,
    DecodeOutcome,
    DecodeRefused,
    Opened,
    PrefillDone,
    PrefillFailed,
    PrefillOutcome,
    PrefillRefused,
)
from proxy.resume.events import ERROR
from proxy.sight.traces import Leg
from proxy.upstream import Upstream

# A decode node that will refuse too has the same request before it and says so at once.
REFUSAL_GRACE_S: Final = 1.0
_BUSY: Final = frozenset((408, 429))
_ERROR_HEADERS: Final = (b"content-type", b"retry-after", b"www-authenticate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to one node."""

    node: Node
    endpoint: str
    headers: bytes  # as lines
    body: bytes
    leg: Leg


async def open_decode(upstream: Upstream, call: Call) -> DecodeOutcome:
    """Send the decode leg and wait for the first bytes that could be relayed."""
    answer: Answer | None = None
    outcome: DecodeOutcome | None = None
    try:
        answer = await upstream.post(call.node.url, call.endpoint, call.headers, call.body)
        streams = answer.is_stream and answer.status == 200
        outcome = _judge(answer, await (answer.read_event() if streams else answer.read_all()))
    except UpstreamError as exc:
        outcome = DecodeFailed(exc.kind, str(exc))
    finally:
        if answer is not None and not isinstance(outcome, Opened):
            answer.close()
    return outcome


async def run_prefill(upstream: Upstream, call: Call, *, timeout_s: float) -> PrefillOutcome:
    """Send the prefill leg and wait for its end."""
    answer: Answer | None = None
    try:
        async with asyncio.timeout(timeout_s):
            answer = await upstream.post(call.node.url, call.endpoint, call.headers, call.body)
            body = await answer.read_all()
    except UpstreamError as exc:
        return PrefillFailed(exc.kind, str(exc))
    except TimeoutError:
        return PrefillFailed(Kind.TIMEOUT, "it did not answer in time")
    finally:
        if answer is not None:
            answer.close()
    if answer.status == 200:
        return PrefillDone(perf_counter())
    if answer.status in _BUSY:
        return PrefillFailed(Kind.BUSY, f"it answered {answer.status}")
    if 400 <= answer.status < 500:
        return PrefillRefused(_answered(answer, body))
    return PrefillFailed(Kind.STATUS, f"it answered {answer.status}")


async def first_to_count(
    decode: asyncio.Task[DecodeOutcome], prefill: asyncio.Task[PrefillOutcome]
) -> DecodeOutcome | PrefillFailed | PrefillRefused:
    """Wait until the decode leg has an outcome, or the prefill leg has one that makes waiting pointless."""
    await asyncio.wait((decode, prefill), return_when=asyncio.FIRST_COMPLETED)
    if decode.done():
        return decode.result()
    outcome = prefill.result()
    if isinstance(outcome, PrefillFailed):
        return outcome
    await asyncio.wait((decode,), timeout=REFUSAL_GRACE_S if isinstance(outcome, PrefillRefused) else None)
    return decode.result() if decode.done() or isinstance(outcome, PrefillDone) else outcome


def _judge(answer: Answer, first: bytes) -> DecodeOutcome:
    if answer.status == 200:
        if not first:
            return DecodeFailed(Kind.EMPTY, "its answer has no body")
        return _judge_event(first) or Opened(answer, first)
    if answer.status in _BUSY:
        return DecodeFailed(Kind.BUSY, f"it answered {answer.status}", _answered(answer, first))
    if 400 <= answer.status < 500:
        return DecodeRefused(_answered(answer, first))
    answered = _answered(answer, first) if answer.status >= 500 and _is_openai_error(first) else None
    return DecodeFailed(Kind.STATUS, f"it answered {answer.status}", answered)


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
    return DecodeFailed(Kind.STATUS, f"its stream began with an error {status}", answered)


def _answered(answer: Answer, body: bytes) -> NodeAnsweredError:
    """Return a node's own error, its body replaced if it is not in OpenAI's shape."""
    kept = [(name, value) for name, value in answer.headers if name in _ERROR_HEADERS]
    if _is_openai_error(body):
        return NodeAnsweredError(answer.status, body, kept)
    return NodeAnsweredError(answer.status, headers=[pair for pair in kept if pair[0] != b"content-type"])


def _is_openai_error(body: bytes) -> bool:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return isinstance(decoded, dict) and isinstance(decoded.get("error"), dict)
