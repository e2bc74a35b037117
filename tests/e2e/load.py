"""Clients that ask one streaming request after the other while something is done to the deployment."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import httpx

from baton.contracts.http import PATH_HEADER

TOKENS: Final = 32
PROMPT: Final = "The harbour of Port Amber lies at the mouth of the river, and every evening the boats come home. "
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Load:
    """Clients that ask one streaming request after the other, all answers counted."""

    def __init__(
        self,
        url: Callable[[], str],
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        clients: int,
        keep_connections: bool = True,
        pause_s: float = 0.0,
    ) -> None:
        """Take what says whom to ask next, headers of every request, how many ask, and how long each rests in between."""
        self._clients = clients
        self._pause_s = pause_s
        self._url = url
        self._headers = dict(headers)
        self._limits = httpx.Limits(max_keepalive_connections=None if keep_connections else 0)
        self._stop = asyncio.Event()
        self.paths: Counter[str] = Counter()
        self.problems: list[str] = []

    async def run(self) -> None:
        """Ask until told to stop."""
        async with httpx.AsyncClient(timeout=60, headers=self._headers, limits=self._limits) as http:
            await asyncio.gather(*(self._client(http, number) for number in range(self._clients)))

    def stop(self) -> None:
        """Let each client end its request."""
        self._stop.set()

    @property
    def answered(self) -> int:
        """How many requests have been answered wholly."""
        return sum(self.paths.values())

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        asked = 0
        while not self._stop.is_set():
            asked += 1
            try:
                await self._ask(http, f"{number}-{asked}: {PROMPT * (1 + asked % 8)}")
            except (httpx.HTTPError, AssertionError, KeyError, ValueError) as exc:
                self.problems.append(f"{type(exc).__name__}: {exc}")
            await asyncio.sleep(self._pause_s)

    async def _ask(self, http: httpx.AsyncClient, prompt: str) -> None:
        body = {"model": "baton-embedded", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
        body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
        async with http.stream("POST", f"{self._url()}/v1/completions", json=body) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        assert response.status_code == 200, lines
        assert lines[-1] == "[DONE]", lines[-1]
        events = [json.loads(line) for line in lines[:-1]]
        assert events[-1]["usage"]["completion_tokens"] == TOKENS, events[-1]
        self.paths[response.headers[PATH_HEADER]] += 1


async def under_load(load: Load, work: Callable[[], None]) -> None:
    """Do some work, in a thread, while clients ask."""
    clients = asyncio.create_task(load.run())
    try:
        await asyncio.to_thread(work)
    finally:
        load.stop()
        await clients
