"""Sends an `Ask` and returns what became of it, always: a failure is a record too."""

import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from baton.contracts.http import PATH_HEADER, TRANSFER_HEADER
from baton.loadtest.client.http import Client, LostError, WireError
from baton.loadtest.client.stream import AnswerStream, error_words
from baton.loadtest.measures.record import CONNECT, CUT, MALFORMED, STATUS, TIMEOUT, Record
from baton.loadtest.traffic.script import Ask, Form

_ERROR_BYTES: Final = 65_536  # of an error's body are kept


class Answered(NamedTuple):
    """A request's record, and the text that came."""

    record: Record
    text: str


class Timing(NamedTuple):
    """What the loop knows of a request; seconds of `perf_counter`, or since the stage began."""

    stage_began_s: float
    due_s: float | None = None
    queued_s: float = 0.0


class _Answer:
    """The sink of one exchange."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.path = self.transfer_id = ""
        self.stream = AnswerStream()
        self.error_body = b""

    def on_head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.path = status, headers.get(PATH_HEADER, "")
        self.transfer_id = headers.get(TRANSFER_HEADER, "")

    def on_body(self, data: bytes, now_s: float) -> None:
        if self.status == 200:
            self.stream.feed(data, now_s)
        elif len(self.error_body) < _ERROR_BYTES:
            self.error_body += data


@dataclass(frozen=True, slots=True)
class Exchange:
    """Asks one server in one form."""

    client: Client
    form: Form

    def body(self, ask: Ask) -> bytes:
        return self.form.body(ask)

    async def send(self, index: int, ask: Ask, body: bytes, timing: Timing) -> Answered:
        """Send a request and wait for its end. The clock starts before the connection is sought."""
        answer, failure, detail = _Answer(), "", ""
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
        stream = answer.stream
        if answer.status not in (None, 200):
            failure, detail = STATUS, error_words(answer.error_body)
        elif not failure or (failure == CUT and stream.done):  # a connection may break behind the end
            failure, detail = stream.verdict(complete=not failure), stream.detail
        elif stream.error:
            failure, detail = stream.error, stream.detail
        record = Record(
            index=index,
            started_s=began_s - timing.stage_began_s,
            ended_s=ended_s - timing.stage_began_s,
            due_s=timing.due_s,
            queued_s=timing.queued_s,
            ttft_s=None if stream.first_s is None else stream.first_s - began_s,
            latency_s=None if stream.first_s is None else stream.last_s - began_s,
            itls_s=tuple(stream.gaps_s),
            input_tokens=ask.input_tokens if stream.input_tokens is None else stream.input_tokens,
            output_tokens=stream.tokens(),
            asked_output_tokens=ask.output_tokens,
            conversation=ask.conversation,
            turn=ask.turn,
            status=answer.status,
            error=failure,
            detail=detail,
            path=answer.path,
            transfer_id=answer.transfer_id,
        )
        return Answered(record, "".join(stream.pieces))
