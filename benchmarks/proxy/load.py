"""The loads, and what came back: nothing is a figure unless every byte of it is there."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from baton.loadtest.client.fetch import fetch
from baton.loadtest.client.http import Client, parse_address
from baton.loadtest.errors import RunError
from baton.loadtest.mock_engine.answers import DONE
from baton.loadtest.mock_engine.engine import COUNTS_PATH
from baton.loadtest.mock_engine.rules import COMPLETIONS
from baton.loadtest.mock_engine.settings import MODEL, Counts

PROMPT: Final = "Why is the sky blue, and the sea as well"  # 40 bytes
SHORT: Final = 2  # tokens of a short request: one token is a prefill node's alone
TIMEOUT_S: Final = 60.0
_EVENT: Final = b"data: "
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Taken:
    """One answer as received: status, pieces, time of the first."""

    status: int = 0
    first_s: float = 0.0  # when the first bytes of its body came
    ended: bool = False
    pieces: list[bytes] = field(default_factory=list)

    def on_head(self, status: int, headers: dict[str, str]) -> None:  # noqa: ARG002
        self.status = status

    def on_body(self, data: bytes, now_s: float) -> None:
        if not self.pieces:
            self.first_s = now_s
        self.pieces.append(data)

    def check(self, tokens: int) -> None:
        body = b"".join(self.pieces)
        events = body.count(_EVENT)
        if self.status != 200 or not body.endswith(DONE) or events != tokens + 1:
            raise RunError(f"status {self.status}, {events} events instead of {tokens + 1}: {body[:200]!r}")


class Streamed(NamedTuple):
    """Streams that started together."""

    first_tokens_s: list[float]  # each from the common start
    duration_s: float


class Load:
    def __init__(self, url: str, more: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> None:
        self.url = url
        self._client = Client(parse_address(url), {}, timeout_s)
        self._more = dict(more)  # fields of each body

    def close(self) -> None:
        self._client.close()

    async def short(self, requests: int, at_once: int) -> None:
        body, left = self._body(SHORT), iter(range(requests))

        async def ask() -> None:
            for _ in left:
                await self._ask(body, SHORT)

        await _all(*(ask() for _ in range(at_once)))

    async def one_at_a_time(self, requests: int) -> list[float]:
        body, times_s = self._body(SHORT), []
        for _ in range(requests):
            began_s = time.perf_counter()
            times_s.append((await self._ask(body, SHORT)).first_s - began_s)
        return times_s

    async def together(self, streams: int, tokens: int) -> Streamed:
        body = self._body(tokens)
        began_s = time.perf_counter()
        taken = await _all(*(self._ask(body, tokens) for _ in range(streams)))
        duration_s = time.perf_counter() - began_s
        return Streamed([answer.first_s - began_s for answer in taken], duration_s)

    async def one_by_one(self, answers: Sequence[Taken], tokens: int, starts_per_s: float) -> None:
        """Start a stream for each answer, so many a second, and read them to their ends."""
        body = self._body(tokens)

        async def ask(number: int, taken: Taken) -> None:
            await asyncio.sleep(number / starts_per_s)
            await self._ask(body, tokens, taken)

        await _all(*(ask(number, taken) for number, taken in enumerate(answers)))

    async def _ask(self, body: bytes, tokens: int, taken: Taken | None = None) -> Taken:
        taken = taken or Taken()
        await self._client.ask("POST", COMPLETIONS, body, taken)
        taken.ended = True
        taken.check(tokens)
        return taken

    def _body(self, tokens: int) -> bytes:
        asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": tokens, "stream": True, **self._more}
        return msgspec.json.encode(asked)


async def read_counts(url: str) -> Counts:
    return msgspec.json.decode(await fetch(parse_address(url), COUNTS_PATH, {}, TIMEOUT_S), type=Counts)


async def _all(*asks: Coroutine[Any, Any, T]) -> list[T]:
    """Wait for all; the first that fails ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask) for ask in asks]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]
