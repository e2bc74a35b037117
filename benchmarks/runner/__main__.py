"""`python -m benchmarks.runner`: Baton's model runner beside the engine's own; about 4 minutes."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.forkserver import ForkServer
from benchmarks import harness
from benchmarks.overlap.processes import Place, Processes, free_port
from benchmarks.overlap.session import prompts, rotated
from benchmarks.overlap.streaming import read_stream, request_body
from benchmarks.pipeline.figures import Load, Round, round_of
from benchmarks.runner.figures import Cell, table

ENGINE: Final = "engine"
WORKERS: Final = {
    ENGINE: "baton.model_runner.cpu.EngineWorker",
    "baton": "baton.model_runner.cpu.Worker",
    "engine again": "baton.model_runner.cpu.EngineWorker",
}
LOADS: Final[Mapping[Load, Mapping[str, Any]]] = {
    Load("8 streams", requests=8, prompt_tokens=64, answer_tokens=48): {},
    Load("8 streams, 5 logprobs", requests=8, prompt_tokens=64, answer_tokens=48): {"logprobs": 5},
    Load("1 stream", requests=1, prompt_tokens=64, answer_tokens=64): {},
}
TARGET: Final = "benchmarks.overlap.targets:vllm_server"
_FLAGS: Final = (
    *("--host", "127.0.0.1", *harness.QUIET),
    *("--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(256 << 20)),
)
REQUEST_TIMEOUT_S: Final = 120.0

Draw = Callable[[int], list[int]]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.runner", description=__doc__)
    made.add_argument("--rounds", type=int, default=45, help="per load, of every server")
    made.add_argument("--seed", type=int, default=None, help="of the prompts; drawn anew unless given")
    return made


async def ask(http: aiohttp.ClientSession, url: str, load: Load, more: Mapping[str, Any], draw: Draw) -> Round:
    """Put a load on a server; every prompt is new."""
    bodies = [
        request_body(str(WEIGHTS), draw(load.prompt_tokens), load.answer_tokens, **more) for _ in range(load.requests)
    ]
    return round_of(load, await asyncio.gather(*(read_stream(http, url, body) for body in bodies)))


async def start(processes: Processes) -> dict[str, str]:
    """Start a server for each worker class; return their URLs. Raises `RigError`: one did not come up."""
    urls = {}
    for name, worker in WORKERS.items():
        port = free_port()
        argv = ["--model", str(WEIGHTS), "--port", str(port), "--worker-cls", worker, *_FLAGS]
        processes.start(name, TARGET, {"argv": argv}, Place(core=0, pinned=False))
        urls[name] = f"http://127.0.0.1:{port}"
        await processes.wait_for_url(name, f"{urls[name]}/health")
    return urls


async def measure(arguments: argparse.Namespace, forkserver: ForkServer, folder: Path) -> list[Cell]:
    """Start the servers, let each pass twice, and take the cells; the servers take turns in each round."""
    draw = prompts(arguments.seed)
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    # Each request has a connection of its own: a kept one may be closed by a server that waited for its turn.
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as http:
        processes = Processes(forkserver, folder, http)
        try:
            urls = await start(processes)
            for url in [*urls.values()] * 2:  # first passes are slow
                for load, more in LOADS.items():
                    await ask(http, url, load, more, draw)
            rounds: dict[Load, dict[str, list[Round]]] = {load: {name: [] for name in urls} for load in LOADS}
            for turn in range(arguments.rounds):  # loads take turns as well, so that all see the same machine
                for load, more in LOADS.items():
                    for name in rotated(list(urls), turn):
                        rounds[load][name].append(await ask(http, urls[name], load, more, draw))
            return [Cell(load=load, rounds=taken) for load, taken in rounds.items()]
        finally:
            processes.stop()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)

    def take() -> int:
        with harness.workplace("runner") as (forkserver, folder):
            cells = asyncio.run(measure(arguments, forkserver, folder))
        print(f"load average {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} cores, {arguments.rounds} rounds")
        print(table(cells, ENGINE))
        return 0

    return harness.run("runner", take)


if __name__ == "__main__":
    sys.exit(main())
