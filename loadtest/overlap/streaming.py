"""One streamed completion, timed to its first token at the client."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from loadtest.overlap.session import MeasureError

COMPLETIONS: Final = "/v1/completions"
_TOKENS: Final = 2  # the second only shows that decoding goes on


class FirstToken(NamedTuple):
    """When the first token came."""

    seconds: float  # since the request was sent
    at: float  # s, monotonic: the same clock in every process of this machine
    headers: Mapping[str, str]


def request_body(model: str, prompt: Sequence[int], **more: Any) -> bytes:
    """Return the request as it is sent: greedy, streamed, a fixed number of tokens."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True}
    return json.dumps(body | {"stream": True} | more).encode()


async def first_token(http: aiohttp.ClientSession, url: str, body: bytes) -> FirstToken:
    """Send a request and read its answer to the end.

    Raises:
        MeasureError: it was not answered with 200 and at least one token.
    """
    headers = {"Content-Type": "application/json"}
    began = time.monotonic()
    at = 0.0
    try:
        async with http.post(url + COMPLETIONS, data=body, headers=headers) as response:
            async for line in response.content:
                if not at and line.startswith(b"data: {"):
                    at = time.monotonic()
                    if b'"error"' in line:
                        raise MeasureError(f"the stream began with an error: {line.decode(errors='replace')}")
            if response.status != 200 or not at:
                raise MeasureError(f"answered {response.status} without a token")
            return FirstToken(at - began, at, {name.lower(): value for name, value in response.headers.items()})
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise MeasureError(f"{type(exc).__name__}: {exc}") from exc
