"""One streamed completion, each token timed at the client."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from benchmarks.overlap.session import MeasureError

COMPLETIONS: Final = "/v1/completions"


class Answer(NamedTuple):
    """When the tokens came, on the machine's monotonic clock, in s."""

    began: float  # the request, or its first leg, was sent
    times: Sequence[float]  # of the events that carried tokens; at least one
    headers: Mapping[str, str]

    @property
    def ttft_s(self) -> float:
        return self.times[0] - self.began


def request_body(model: str, prompt: Sequence[int], max_tokens: int, **more: Any) -> bytes:
    body = {"model": model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return json.dumps(body | {"stream": True} | more).encode()


async def read_stream(http: aiohttp.ClientSession, url: str, body: bytes, times: list[float] | None = None) -> Answer:
    """Read an answer to its end; `times` is appended to as tokens come. Raises `MeasureError`: no 200 with a token."""
    headers = {"Content-Type": "application/json"}
    times = [] if times is None else times
    began = time.monotonic()
    try:
        async with http.post(url + COMPLETIONS, data=body, headers=headers) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
                    if b'"error"' in line:
                        raise MeasureError(f"the stream holds an error: {line.decode(errors='replace')}")
            if response.status != 200 or not times:
                raise MeasureError(f"answered {response.status} without a token")
            return Answer(began, times, {name.lower(): value for name, value in response.headers.items()})
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise MeasureError(f"{type(exc).__name__}: {exc}") from exc
