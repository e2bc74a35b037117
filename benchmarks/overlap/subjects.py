"""How a request is made, and one sample taken: of a plain server, Baton's proxy, vLLM's own connectors, a raw push.

Everything that is read besides the tokens (counters, metrics) is read outside the timed stretch. vLLM's connectors are
asked directly, leg by leg, which spares them what their example proxies cost.
"""

import asyncio
import json
import secrets
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import aiohttp

from baton.contracts.http import DISAGGREGATED, PATH_HEADER, REASON_HEADER, TRANSFER_HEADER, TRANSFERS_PATH
from benchmarks.overlap.figures import Sample
from benchmarks.overlap.session import MeasureError

COMPLETIONS: Final = "/v1/completions"
_JSON: Final = {"Content-Type": "application/json"}
SETTLE_S: Final = 0.08  # between samples: the nodes end the last request, the link's bucket fills up again
_TOKENS: Final = 2  # of a sample: the second only shows that decoding goes on
_PREFILL_SECONDS: Final = "vllm:request_prefill_time_seconds_sum"
WireBytes = Callable[[], int]  # bytes that P has put onto the data link so far


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
    times = [] if times is None else times
    began = time.monotonic()
    try:
        async with http.post(url + COMPLETIONS, data=body, headers=_JSON) as response:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A plain server: C. Or several behind a proxy."""

    http: aiohttp.ClientSession
    model: str
    url: str

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer:
        return await read_stream(self.http, self.url, request_body(self.model, prompt, max_tokens), times)

    async def measure(self, prompt: Sequence[int]) -> Sample:
        before = await prefill_seconds(self.http, self.url)
        await asyncio.sleep(SETTLE_S)
        answer = await self.ask(prompt, _TOKENS)
        return Sample(seconds=answer.ttft_s, prefill_s=await prefill_seconds(self.http, self.url) - before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A raw transfer by Mooncake, without a model: gives X."""

    push: Callable[[int], Awaitable[float]]  # bytes → seconds
    bytes_of: Callable[[int], int]  # tokens → KV bytes
    wire_bytes: WireBytes

    async def measure(self, prompt: Sequence[int]) -> Sample:
        before = self.wire_bytes()
        await asyncio.sleep(SETTLE_S)
        size = self.bytes_of(len(prompt))
        seconds = await self.push(size)
        return Sample(seconds=seconds, wire_bytes=self.wire_bytes() - before, kv_bytes=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A prefill node that hands over to a decode node."""

    http: aiohttp.ClientSession
    model: str
    prefill: str
    wire_bytes: WireBytes

    @abstractmethod
    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer: ...

    async def measure(self, prompt: Sequence[int]) -> Sample:
        sample, _ = await self._timed(prompt)
        return sample

    async def _timed(self, prompt: Sequence[int]) -> tuple[Sample, Answer]:
        prefill_before, wire_before = await prefill_seconds(self.http, self.prefill), self.wire_bytes()
        await asyncio.sleep(SETTLE_S)
        answer = await self.ask(prompt, _TOKENS)
        wire = self.wire_bytes() - wire_before
        prefill_s = await prefill_seconds(self.http, self.prefill) - prefill_before
        return Sample(seconds=answer.ttft_s, wire_bytes=wire, prefill_s=prefill_s), answer

    async def _prefill_leg(self, prompt: Sequence[int], params: Mapping[str, Any]) -> dict[str, Any]:
        body = request_body(self.model, prompt, 1, stream=False, kv_transfer_params=params)
        async with self.http.post(self.prefill + COMPLETIONS, data=body, headers=_JSON) as response:
            answered: dict[str, Any] = await response.json()
            if response.status != 200:
                raise MeasureError(f"the prefill leg was answered {response.status}")
            return answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Baton(Pair):
    """A prefill and a decode node behind the real proxy."""

    proxy: str
    token: str

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer:
        """Make one request; see `read_stream`. Raises `MeasureError`: also if it was not disaggregated."""
        answer = await read_stream(self.http, self.proxy, request_body(self.model, prompt, max_tokens), times)
        refuse_local(answer)
        return answer

    async def measure(self, prompt: Sequence[int]) -> Sample:
        before = await self._transfers()
        sample, answer = await self._timed(prompt)
        pushed = await self._transfers()
        kv_bytes = _committed(pushed) - _committed(before)
        return replace(sample, kv_bytes=kv_bytes, after_commit_s=_after_commit_s(pushed, answer))

    async def _transfers(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.http.get(self.prefill + TRANSFERS_PATH, headers=headers) as response:
            response.raise_for_status()
            worker: dict[str, Any] = (await response.json())["worker"]
            return worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Mooncake(Pair):
    """vLLM's MooncakeConnector; both legs are sent at once."""

    decode: str
    bootstrap: str  # as the client reaches it
    bootstrap_for_decode: str  # as the decode node reaches it: over the data link

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer:
        async with self.http.get(self.bootstrap + "/query") as response:
            engine = (await response.json())["0"]["engine_id"]
        transfer = {"transfer_id": f"xfer-{secrets.token_hex(8)}"}
        prefill = {"do_remote_decode": True, "do_remote_prefill": False, **transfer}
        decode = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": engine, **transfer}
        decode["remote_bootstrap_addr"] = self.bootstrap_for_decode
        body = request_body(self.model, prompt, max_tokens, kv_transfer_params=decode)
        leg = asyncio.create_task(self._prefill_leg(prompt, prefill))
        try:
            return await read_stream(self.http, self.decode, body, times)
        finally:
            await leg


@dataclass(frozen=True, slots=True, kw_only=True)
class Nixl(Pair):
    """vLLM's NixlConnector, pulling: the decode leg needs what the prefill leg answered."""

    decode: str

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer:
        """Make one request. It began with its prefill leg."""
        remote = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
        params = {"do_remote_decode": True, "do_remote_prefill": False, **dict.fromkeys(remote)}
        began = time.monotonic()
        answered = await self._prefill_leg(prompt, params)
        handed = answered.get("kv_transfer_params")
        if not handed:
            raise MeasureError("the prefill leg handed nothing over")
        body = request_body(self.model, prompt, max_tokens, kv_transfer_params=handed)
        return (await read_stream(self.http, self.decode, body, times))._replace(began=began)


def refuse_local(answer: Answer) -> None:
    """Raise `MeasureError` unless the answer is disaggregated."""
    path, reason = answer.headers.get(PATH_HEADER), answer.headers.get(REASON_HEADER)
    if path != DISAGGREGATED:
        raise MeasureError(f"the prompt was not computed on the prefill node: {path} ({reason})")


async def prefill_seconds(http: aiohttp.ClientSession, url: str) -> float:
    async with http.get(url + "/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith(_PREFILL_SECONDS):
                return float(line.rpartition(" ")[2])
    return 0.0


def _committed(worker: dict[str, Any]) -> int:
    return int(worker["totals"]["bytes_committed"])


def _after_commit_s(worker: dict[str, Any], answer: Answer) -> float | None:
    """Return the time from COMMIT, which P names on the machine's monotonic clock, to the first token."""
    for entry in worker["recent"]:
        if entry["transfer_id"] == answer.headers.get(TRANSFER_HEADER) and "commit" in entry["timings_s"]:
            return float(answer.times[0] - entry["scheduled_at_s"] - entry["timings_s"]["commit"])
    return None
