"""How one sample is taken: from a plain server, through Baton's proxy, from vLLM's own connector, from a raw push.

Everything that is read besides the first token (counters, metrics) is read outside the timed stretch.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from contracts.http import DISAGGREGATED, PATH_HEADER, REASON_HEADER, TRANSFER_HEADER, TRANSFERS_PATH
from loadtest.overlap.figures import Sample
from loadtest.overlap.session import MeasureError
from loadtest.overlap.streaming import COMPLETIONS, FirstToken, first_token, request_body

SETTLE_S: Final = 0.08  # between samples: the nodes end the last request, the link's bucket fills up again
_PREFILL_SECONDS: Final = "vllm:request_prefill_time_seconds_sum"

WireBytes = Callable[[], int]  # bytes that P has put onto the data link so far
RawPush = Callable[[int], Awaitable[float]]  # bytes → seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A plain server: C."""

    http: aiohttp.ClientSession
    model: str
    url: str

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """See `Subject.measure`."""
        before = await prefill_seconds(self.http, self.url)
        await asyncio.sleep(SETTLE_S)
        first = await first_token(self.http, self.url, request_body(self.model, prompt))
        return Sample(seconds=first.seconds, prefill_s=await prefill_seconds(self.http, self.url) - before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Mooncake alone: X."""

    push: RawPush
    bytes_of: Callable[[int], int]  # tokens → KV bytes
    wire_bytes: WireBytes

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """See `Subject.measure`."""
        before = self.wire_bytes()
        await asyncio.sleep(SETTLE_S)
        size = self.bytes_of(len(prompt))
        seconds = await self.push(size)
        return Sample(seconds=seconds, wire_bytes=self.wire_bytes() - before, kv_bytes=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baton:
    """A prefill and a decode node behind the real proxy."""

    http: aiohttp.ClientSession
    model: str
    proxy: str
    prefill: str
    token: str
    wire_bytes: WireBytes

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """See `Subject.measure`."""
        prefill_before, pushed_before = await prefill_seconds(self.http, self.prefill), await self._transfers()
        wire_before = self.wire_bytes()
        await asyncio.sleep(SETTLE_S)
        first = await first_token(self.http, self.proxy, request_body(self.model, prompt))
        wire = self.wire_bytes() - wire_before
        if first.headers.get(PATH_HEADER) != DISAGGREGATED:
            path, reason = first.headers.get(PATH_HEADER), first.headers.get(REASON_HEADER)
            raise MeasureError(f"the prompt was not computed on the prefill node: {path} ({reason})")
        pushed = await self._transfers()
        return Sample(
            seconds=first.seconds,
            wire_bytes=wire,
            kv_bytes=_committed(pushed) - _committed(pushed_before),
            prefill_s=await prefill_seconds(self.http, self.prefill) - prefill_before,
            **_commit(pushed, first),
        )

    async def _transfers(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.http.get(self.prefill + TRANSFERS_PATH, headers=headers) as response:
            response.raise_for_status()
            worker: dict[str, Any] = (await response.json())["worker"]
            return worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """vLLM's MooncakeConnector; both legs sent at once and directly, as its example proxy does but without its cost."""

    http: aiohttp.ClientSession
    model: str
    prefill: str
    decode: str
    bootstrap: str  # as the client reaches it
    bootstrap_for_decode: str  # as the decode node reaches it: over the data link
    wire_bytes: WireBytes

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """See `Subject.measure`."""
        async with self.http.get(self.bootstrap + "/query") as response:
            engine = (await response.json())["0"]["engine_id"]
        transfer = {"transfer_id": f"xfer-{secrets.token_hex(8)}"}
        leg = {"do_remote_decode": True, "do_remote_prefill": False, **transfer}
        body = request_body(self.model, prompt, stream=False, max_tokens=1, kv_transfer_params=leg)
        other = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": engine, **transfer}
        other["remote_bootstrap_addr"] = self.bootstrap_for_decode
        other_body = request_body(self.model, prompt, kv_transfer_params=other)
        prefill_before, wire_before = await prefill_seconds(self.http, self.prefill), self.wire_bytes()
        await asyncio.sleep(SETTLE_S)
        prefill_leg = asyncio.create_task(_post(self.http, self.prefill, body))
        try:
            first = await first_token(self.http, self.decode, other_body)
            wire = self.wire_bytes() - wire_before
        finally:
            await prefill_leg
        prefill_s = await prefill_seconds(self.http, self.prefill) - prefill_before
        return Sample(seconds=first.seconds, wire_bytes=wire, prefill_s=prefill_s)


async def prefill_seconds(http: aiohttp.ClientSession, url: str) -> float:
    """Read how long a server has spent on prefills in all."""
    async with http.get(url + "/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith(_PREFILL_SECONDS):
                return float(line.rpartition(" ")[2])
    return 0.0


async def _post(http: aiohttp.ClientSession, url: str, body: bytes) -> None:
    async with http.post(url + COMPLETIONS, data=body, headers={"Content-Type": "application/json"}) as response:
        await response.read()
        if response.status != 200:
            raise MeasureError(f"the prefill leg was answered {response.status}")


def _committed(worker: dict[str, Any]) -> int:
    return int(worker["totals"]["bytes_committed"])


def _commit(worker: dict[str, Any], first: FirstToken) -> dict[str, float]:
    """When P sent COMMIT: exactly, if it says so on the machine's monotonic clock, else at the earliest."""
    identity = first.headers.get(TRANSFER_HEADER)
    recent: list[dict[str, Any]] = worker.get("recent", [])
    entry: dict[str, Any] = next((entry for entry in recent if entry["transfer_id"] == identity), {})
    timings: dict[str, float] = entry.get("timings_s", {})
    found: dict[str, float] = {}
    if "scheduled_at_s" in entry and "commit" in timings:
        found["after_commit_s"] = first.at - entry["scheduled_at_s"] - timings["commit"]
    if "commit" in timings:
        found["commit_bound_s"] = first.seconds - timings["commit"]
    return found
