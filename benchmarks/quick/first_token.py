"""The first token of a prefill and a decode node behind the proxy, beside that of a plain server: real vLLM, over loopback."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp

from baton.contracts.http import DISAGGREGATED, PATH_HEADER, REASON_HEADER
from baton.contracts.secret import generate_secret
from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.forkserver import ForkServer
from benchmarks.harness import QUIET, RARE_PROBES
from benchmarks.overlap.processes import Place, Processes, free_port
from benchmarks.overlap.session import MeasureError, prompts
from benchmarks.overlap.streaming import read_stream, request_body
from benchmarks.quick.ratios import Sample

TOKENS: Final = (600, 3000)
ROUNDS: Final = 7
REPETITIONS: Final = 3  # of each, in each round
REQUEST_TIMEOUT_S: Final = 60.0
PLAIN, BATON = "plain", "baton"
_ANSWER_TOKENS: Final = 2
_SETTLE_S: Final = 0.08  # between requests: the nodes end the last one
_SERVER: Final = ("--model", str(WEIGHTS), "--host", "127.0.0.1", "--kv-cache-memory-bytes", str(256 << 20))


def measure(forkserver: ForkServer, folder: Path, rounds: int = ROUNDS) -> Iterator[Sample]:
    """Yield the ratios of both lengths, round by round.

    Raises:
        RigError: a server did not come up.
        MeasureError: a request failed, or was not disaggregated.
    """
    yield from asyncio.run(_measure(forkserver, folder, rounds))


async def _measure(forkserver: ForkServer, folder: Path, rounds: int) -> list[Sample]:
    draw = prompts(1)
    samples: list[Sample] = []
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        _servers(Processes(forkserver, folder, http), folder) as urls,
    ):
        for number in range(rounds + 1):
            for tokens in TOKENS:
                taken_s: dict[str, list[float]] = {name: [] for name in urls}
                for turn in range(REPETITIONS * len(urls)):
                    name = [*urls][(turn + number) % len(urls)]
                    taken_s[name].append(await _first_token_s(http, urls[name], draw(tokens), name))
                ratio = median(taken_s[BATON]) / median(taken_s[PLAIN])
                if number:  # the first round warms up
                    samples.append(Sample(f"first token, {tokens} tokens, 1P1D ÷ plain", ratio))
    return samples


async def _first_token_s(http: aiohttp.ClientSession, url: str, prompt: list[int], name: str) -> float:
    await asyncio.sleep(_SETTLE_S)
    answer = await read_stream(http, url, request_body(str(WEIGHTS), prompt, _ANSWER_TOKENS))
    if name == BATON and answer.headers.get(PATH_HEADER) != DISAGGREGATED:
        path, reason = answer.headers.get(PATH_HEADER), answer.headers.get(REASON_HEADER)
        raise MeasureError(f"the prompt was not computed on the prefill node: {path} ({reason})")
    return answer.ttft_s


@asynccontextmanager
async def _servers(processes: Processes, folder: Path) -> AsyncIterator[Mapping[str, str]]:
    """Start a plain server, a prefill node, a decode node and the proxy; the decode node has a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    near, far = Place(core=cores[0]), Place(core=cores[-1])
    plain, prefill, decode, proxy = (free_port() for _ in range(4))
    secret_file = folder / "secret"
    secret_file.write_text(generate_secret())
    secret = ("--secret-file", str(secret_file))
    try:
        for name, target, port, place, flags in (
            (PLAIN, "benchmarks.overlap.targets:vllm_server", plain, near, ("--enforce-eager",)),
            ("prefill", "baton.prefill_node.__main__:main", prefill, near, secret),
            ("decode", "baton.decode_node.__main__:main", decode, far, secret),
        ):
            argv = [*_SERVER, "--port", str(port), *QUIET, *flags]
            processes.start(name, target, {"argv": argv}, place)
            await processes.wait_for_url(name, f"http://127.0.0.1:{port}/health")
        nodes = ("--prefill", f"http://127.0.0.1:{prefill}", "--decode", f"http://127.0.0.1:{decode}")
        argv = ["--port", str(proxy), "--when-no-prefill", "refuse", *secret, *nodes]
        processes.start("proxy", "baton.proxy.__main__:main", {"argv": argv}, far, RARE_PROBES)
        await processes.wait_for_url("proxy", f"http://127.0.0.1:{proxy}/ready")
        yield {PLAIN: f"http://127.0.0.1:{plain}", BATON: f"http://127.0.0.1:{proxy}"}
    finally:
        processes.stop()
