"""Sends an `Ask`, understands the answer as it arrives, and returns what became of it, always: a failure is a record too.

As `vllm.benchmarks` does, every event with a choice counts as a token's arrival, whatever is in it. Stricter than
there: the stream must end with `[DONE]`, and an error event inside it is an error.
"""

import time
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import PATH_HEADER, TRANSFER_HEADER
from baton.loadtest.client.http import Client, LostError, WireError
from baton.loadtest.measures.record import CONNECT, CUT, EMPTY, ERROR_EVENT, MALFORMED, STATUS, TIMEOUT, Record
from baton.loadtest.traffic.script import Ask, Form

_DONE: Final = b"[DONE]"
_DETAIL_CHARS: Final = 300
_ERROR_BYTES: Final = 65_536  # of an error's body are kept


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    def said(self) -> str:
        if self.delta is None:
            return self.text or ""
        return self.delta.content or self.delta.reasoning_content or self.delta.reasoning or ""


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]  # figures and files take no number of any size


class _Usage(msgspec.Struct):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None
    object: str | None = None
    message: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class AnswerStream:
    """What has come of one answer."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.path = self.transfer_id = ""
        self.error_body = b""
        self.first_s: float | None = None  # when the first token came
        self.last_s = 0.0
        self.gaps_s: list[float] = []
        self.pieces: list[str] = []  # of the text
        self.input_tokens: int | None = None  # as the server counts
        self.output_tokens: int | None = None
        self.error = ""
        self.detail = ""
        self.done = False
        self._rest = b""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.path = status, headers.get(PATH_HEADER, "")
        self.transfer_id = headers.get(TRANSFER_HEADER, "")

    def on_body(self, data: bytes, now_s: float) -> None:
        if self.status == 200:
            self.feed(data, now_s)
        elif len(self.error_body) < _ERROR_BYTES:
            self.error_body += data

    def feed(self, data: bytes, now_s: float) -> None:
        if b"\r" in data or b"\r" in self._rest:
            *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        else:
            *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._take(line[5:].strip(), now_s)

    def verdict(self, *, complete: bool) -> str:
        """Return what is wrong with the answer, now that it has ended; `complete`: HTTP says that nothing is missing."""
        if self.error:
            return self.error
        if not self.done and (self.first_s is not None or not complete):
            return CUT
        return "" if self.first_s is not None else EMPTY

    def tokens(self) -> int:
        """Return how many tokens were made: as the server says, else as many as there are events with text."""
        return len(self.pieces) if self.output_tokens is None else self.output_tokens

    def _take(self, payload: bytes, now_s: float) -> None:
        if payload == _DONE:
            self.done = True
            return
        try:
            event = _decode(payload)
        except DECODE_ERRORS as exc:
            self._fail(MALFORMED, str(exc))
            return
        if event.error is not None or event.object == "error":
            self._fail(ERROR_EVENT, _words(event.error if event.error is not None else event.message, payload))
        elif event.choices:
            self._token(event.choices[0].said(), now_s)
        if event.usage is not None:
            self.input_tokens, self.output_tokens = event.usage.prompt_tokens, event.usage.completion_tokens

    def _token(self, text: str, now_s: float) -> None:
        if self.first_s is None:
            self.first_s = now_s
        else:
            self.gaps_s.append(now_s - self.last_s)
        self.last_s = now_s
        if text:
            self.pieces.append(text)

    def _fail(self, kind: str, detail: str) -> None:
        if not self.error:
            self.error, self.detail = kind, detail[:_DETAIL_CHARS]


def _words(error: Any, payload: bytes) -> str:
    """Return what an error says; `payload`: what it was read from."""
    try:
        return str(error.get("message", error) if isinstance(error, dict) else error)[:_DETAIL_CHARS]
    except RecursionError:
        return _beginning(payload)


def error_words(body: bytes) -> str:
    """Return what an error's body says: OpenAI's message, else its beginning."""
    try:
        event = msgspec.json.decode(body)
    except DECODE_ERRORS:
        return _beginning(body)
    return _words(event.get("error", event) if isinstance(event, dict) else event, body)


def _beginning(body: bytes) -> str:
    return body[:_DETAIL_CHARS].decode(errors="replace")


class Answered(NamedTuple):
    """A request's record, and the text that came."""

    record: Record
    text: str


class Timing(NamedTuple):
    """What the loop knows of a request; seconds of `perf_counter`, or since the stage began."""

    stage_began_s: float
    due_s: float | None = None
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Asks one server in one form."""

    client: Client
    form: Form

    async def send(self, index: int, ask: Ask, body: bytes, timing: Timing) -> Answered:
        """Send a request and wait for its end. The clock starts before the connection is sought."""
        answer, failure, detail = AnswerStream(), "", ""
        began_s = time.perf_counter()
        try:
            await self.client.ask("POST", self.form.path, body, answer)
        except TimeoutError:
            failure, detail = TIMEOUT, "no complete answer in time"
        except LostError as exc:
            failure, detail = CONNECT if answer.status is None else CUT, str(exc)
        except WireError as exc:
            failure, detail = MALFORMED, str(exc)
        except OSError as exc:
            failure, detail = CONNECT, str(exc)
        ended_s = time.perf_counter()
        if answer.status not in (None, 200):
            failure, detail = STATUS, error_words(answer.error_body)
        elif not failure or (failure == CUT and answer.done):  # a connection may break behind the end
            failure, detail = answer.verdict(complete=not failure), answer.detail
        elif answer.error:
            failure, detail = answer.error, answer.detail
        record = Record(
            index=index,
            started_s=began_s - timing.stage_began_s,
            ended_s=ended_s - timing.stage_began_s,
            due_s=timing.due_s,
            queued_s=timing.queued_s,
            ttft_s=None if answer.first_s is None else answer.first_s - began_s,
            latency_s=None if answer.first_s is None else answer.last_s - began_s,
            itls_s=tuple(answer.gaps_s),
            input_tokens=ask.input_tokens if answer.input_tokens is None else answer.input_tokens,
            output_tokens=answer.tokens(),
            asked_output_tokens=ask.output_tokens,
            conversation=ask.conversation,
            turn=ask.turn,
            status=answer.status,
            error=failure,
            detail=detail,
            path=answer.path,
            transfer_id=answer.transfer_id,
        )
        return Answered(record, "".join(answer.pieces))
