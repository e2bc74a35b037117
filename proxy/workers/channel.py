"""How workers ask each other: one word over a Unix socket, one answer, and the connection is closed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec
from pydantic import BaseModel

T = TypeVar("T", bound=msgspec.Struct)

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 1.0  # for a whole exchange: longer than a busy loop's turn, shorter than a scrape's patience


class NoAnswerError(Exception):
    """A worker is not there, or too busy."""


def encode(told: msgspec.Struct) -> bytes:
    """Encode what a worker tells another one; views may be in it."""
    return msgspec.json.encode(told, enc_hook=BaseModel.model_dump)


def decode(told: bytes, kind: type[T]) -> T:
    """Decode it. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(told, type=kind, dec_hook=lambda view, said: cast("Any", view).model_validate(said))


class Channel:
    """Answers what other workers ask over this worker's Unix socket."""

    def __init__(self, path: Path, answer: Callable[[str], Awaitable[bytes]]) -> None:
        self._path = path
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, in place of the last process that did."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def stop(self) -> None:
        """Listen no more; idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                word = (await reader.readline()).decode().strip()
                writer.write(await self._answer(word))
                await writer.drain()
        except (TimeoutError, OSError, ValueError):
            logger.warning("another worker could not be answered")
        finally:
            writer.close()


async def ask(path: Path, word: str) -> bytes:
    """Ask another worker. Raises `NoAnswerError`: nothing came, or not in time."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(f"{word}\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError) as exc:
        raise NoAnswerError(str(exc)) from exc
    if not answer:
        raise NoAnswerError("it closed the connection")
    return answer
