"""The first token of a prefill and a decode node behind the proxy, beside that of a plain server: real vLLM, over loopback."""

import asyncio
import os
from pathlib import Path
from statistics import median
from typing import Final

import aiohttp

from baton.contracts.secret import generate_secret
from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.forkserver import ForkServer
from benchmarks.harness import QUIET, free_port
from benchmarks.overlap.processes import PAIRS, VLLM, Place, Processes, processes
from benchmarks.overlap.session import prompts
from benchmarks.overlap.subjects import SETTLE_S, read_stream, refuse_local, request_body
from benchmarks.quick.ratios import Sample

TOKENS: Final = (600, 3000)
ROUNDS: Final = 7
REPETITIONS: Final = 3  # of each, in each round
REQUEST_TIMEOUT_S: Final = 60.0
PLAIN, BATON = "plain", "baton"
_ANSWER_TOKENS: Final = 2
_SERVER: Final = ("--model", str(WEIGHTS), "--host", "127.0.0.1", "--kv-cache-memory-bytes", str(256 << 20))


async def measure(forkserver: ForkServer, folder: Path) -> list[Sample]:
    draw = prompts(1)
    samples: list[Sample] = []
    async with processes(forkserver, folder, timeout_s=REQUEST_TIMEOUT_S) as started:
        urls = await _start(started, folder)
        for number in range(ROUNDS + 1):
            for tokens in TOKENS:
                taken_s: dict[str, list[float]] = {name: [] for name in urls}
                for turn in range(REPETITIONS * len(urls)):
                    name = [*urls][(turn + number) % len(urls)]
                    taken_s[name].append(await _first_token_s(started.http, urls[name], draw(tokens), name))
                ratio = median(taken_s[BATON]) / median(taken_s[PLAIN])
                if number:  # the first round warms up
                    samples.append(Sample(f"first token, {tokens} tokens, 1P1D ÷ plain", ratio))
    return samples


async def _first_token_s(http: aiohttp.ClientSession, url: str, prompt: list[int], name: str) -> float:
    await asyncio.sleep(SETTLE_S)
    answer = await read_stream(http, url, request_body(str(WEIGHTS), prompt, _ANSWER_TOKENS))
    if name == BATON:
        refuse_local(answer)
    return answer.ttft_s


async def _start(started: Processes, folder: Path) -> dict[str, str]:
    """Start a plain server, a prefill node, a decode node and the proxy; the decode node has a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    near, far = Place(core=cores[0]), Place(core=cores[-1])
    secret_file = folder / "secret"
    secret_file.write_text(generate_secret())
    secret = ("--secret-file", str(secret_file))
    urls = {}
    for name, target, place, flags in (
        (PLAIN, VLLM, near, ("--enforce-eager",)),
        ("prefill", "baton.prefill_node.__main__:main", near, secret),
        ("decode", "baton.decode_node.__main__:main", far, secret),
    ):
        port = free_port()
        argv = [*_SERVER, "--port", str(port), *QUIET, *flags]
        urls[name] = await started.serve(name, target, argv, place, f"http://127.0.0.1:{port}")
    nodes = ("--prefill", urls["prefill"], "--decode", urls["decode"])
    proxy = await started.proxy("proxy", (*PAIRS, *secret, *nodes), far)
    return {PLAIN: urls[PLAIN], BATON: proxy}
