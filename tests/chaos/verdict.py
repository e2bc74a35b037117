"""Is an answer the right one, or a typed error, or neither? Pure.

Right: the tokens of the reference, with its logprobs. A typed error: OpenAI's shape, as the body of a non-200 answer or as
the last event of a stream. Everything else is a violation: a wrong token, a 200 that is empty or ends early without an
error event, a connection that is cut while the proxy lives.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from baton.contracts.http import PATH_HEADER
from tests.chaos.exchange import Ending, Exchange
from tests.chaos.workload import Reference, logprobs_of
from tests.e2e.client import LOGPROB_TOLERANCE

_DONE = "[DONE]"


class Result(StrEnum):
    """What the client got."""

    EXACT = "exact"
    ERROR = "typed error"
    CUT = "connection lost"  # allowed only where the proxy itself was killed
    VIOLATION = "violation"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one exchange."""

    result: Result
    detail: str = ""
    path: str = ""  # how the answer was made

    def __str__(self) -> str:
        return f"{self.result}: {self.detail}" if self.detail else str(self.result)


def judge(exchange: Exchange, reference: Reference, max_tokens: int, *, stream: bool) -> Verdict:
    path = exchange.headers.get(PATH_HEADER, "")
    if exchange.ending is Ending.LEFT:
        problem = _prefix_problem(exchange, reference, stream=stream)
        return Verdict(result=Result.VIOLATION if problem else Result.LEFT, detail=problem, path=path)
    if exchange.ending is Ending.HUNG:
        return Verdict(result=Result.VIOLATION, detail="no end", path=path)
    if exchange.ending in (Ending.CUT, Ending.UNREACHABLE):
        return Verdict(result=Result.CUT, detail=f"{exchange.ending}, status {exchange.status}", path=path)
    if exchange.status != 200:
        return _judge_error(exchange.status, bytes(exchange.received))
    found = _judge_stream(bytes(exchange.received)) if stream else _judge_body(bytes(exchange.received))
    if found.problem:
        return Verdict(result=Result.VIOLATION, detail=found.problem, path=path)
    if difference := _difference(found.tokens, found.logprobs, reference, max_tokens, whole=not found.error):
        return Verdict(result=Result.VIOLATION, detail=difference, path=path)
    if found.error:
        return Verdict(result=Result.ERROR, detail=found.error, path=path)
    return Verdict(result=Result.EXACT, path=path)


@dataclass(slots=True)
class _Found:
    tokens: list[int]
    logprobs: list[float]
    error: str = ""  # an error event ended the stream
    problem: str = ""


def _judge_error(status: int, body: bytes) -> Verdict:
    try:
        said = error_of(json.loads(body))
    except ValueError:
        said = ""
    if not said:
        return Verdict(result=Result.VIOLATION, detail=f"{status} without a typed error: {body[:200]!r}")
    return Verdict(result=Result.ERROR, detail=f"{status} {said}")


def error_of(body: Any) -> str:
    """Return type and message of an error in OpenAI's shape; "" for anything else."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ""
    message, kind = error.get("message"), error.get("type")
    return f"{kind}: {message}" if isinstance(message, str) and message and isinstance(kind, str) and kind else ""


def _judge_body(body: bytes) -> _Found:
    try:
        choice = json.loads(body)["choices"][0]
        return _Found(list(choice["token_ids"]), logprobs_of(choice))
    except (ValueError, KeyError, IndexError, TypeError):
        return _Found([], [], problem=f"a 200 without an answer: {body[:200]!r}")


def _judge_stream(body: bytes) -> _Found:
    found, done = _read_stream(body)
    if not found.problem and not found.error and not done:
        found.problem = f"the stream ended after {len(found.tokens)} tokens without its last event or an error"
    return found


def _read_stream(body: bytes) -> tuple[_Found, bool]:
    """Read the whole events of a stream; an event after an error, or one that is no JSON, is a problem."""
    found, done = _Found([], []), False
    for line in body.decode(errors="replace").split("\n\n"):
        text = line.strip().removeprefix("data: ")
        if text == _DONE:
            done = True
        elif text and not _read_event(text, found):
            found.problem = found.problem or f"an event that is no JSON: {text[:100]!r}"
    return found, done


def _read_event(text: str, found: _Found) -> bool:
    try:
        event = json.loads(text)
    except ValueError:
        return False
    if said := error_of(event):
        found.error = found.error or said
        return True
    try:
        for choice in event["choices"]:
            is_role = "delta" in choice and "token_ids" not in choice  # a chat's first event
            found.tokens += () if is_role else choice["token_ids"] or ()
            found.logprobs += logprobs_of(choice)
    except (KeyError, TypeError):
        return False
    return True


def _prefix_problem(exchange: Exchange, reference: Reference, *, stream: bool) -> str:
    """What a client had of a stream when it left must be right as well; its last event may be torn."""
    if not stream or exchange.status != 200:
        return ""
    whole = bytes(exchange.received).rpartition(b"\n\n")[0]
    found, _ = _read_stream(whole)
    return _difference(found.tokens, found.logprobs, reference, len(reference.tokens), whole=False)


def _difference(
    tokens: Sequence[int], logprobs: Sequence[float], reference: Reference, max_tokens: int, *, whole: bool
) -> str:
    wanted = reference.tokens[:max_tokens]
    if whole and len(tokens) != len(wanted):
        return f"{len(tokens)} tokens, not {len(wanted)}"
    for at, (got, right) in enumerate(zip(tokens, wanted, strict=False)):
        if got != right:
            return f"wrong token: number {at} is {got}, not {right}"
    if len(tokens) > len(wanted):
        return f"{len(tokens)} tokens, more than {len(wanted)}"
    worst = max((abs(a - b) for a, b in zip(logprobs, reference.logprobs, strict=False)), default=0.0)
    return f"a logprob differs by {worst:.2e}" if worst > LOGPROB_TOLERANCE else ""
