"""`python -m benchmarks.pipeline`: asynchronous pipeline stages beside synchronous ones. Root only; about 4 minutes."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

import aiohttp

from baton.deploy.embedded_model import bench_model
from baton.deploy.forkserver import ForkServer
from baton.model_runner.pipeline.choose import Transfer
from benchmarks import harness
from benchmarks.overlap.network import Network
from benchmarks.overlap.processes import Processes
from benchmarks.overlap.session import prompts, rotated, wait_until_quiet
from benchmarks.overlap.subjects import Plain
from benchmarks.pipeline import servers
from benchmarks.pipeline.figures import Cell, Load, Round, round_of, table
from benchmarks.usage import OtherCpu

WAY: Final = "async"
WAYS: Final = get_args(Transfer)
LOADS: Final = (
    Load("prompts", requests=4, prompt_tokens=1024, answer_tokens=1),
    Load("streams", requests=8, prompt_tokens=64, answer_tokens=48),
)
SPIN_S: Final = (
    1.3  # vLLM's processes spin for 1 s after their last message (`SpinCondition`), which disturbs the next way
)
REQUEST_TIMEOUT_S: Final = 120.0

Draw = Callable[[int], list[int]]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    add = made.add_argument
    add("--links", nargs="+", type=int, default=[0, 1000, 200], metavar="MBIT_S", help="0: unthrottled")
    add("--rounds", type=int, default=7, help="per link and load, of every way")
    add("--chunk", type=int, default=512, metavar="TOKENS", help="--max-num-batched-tokens: what a step computes")
    add("--max-other-cpu", type=float, default=0.15, metavar="CORES", help="what a round waits to come down to")
    add("--patience-s", type=float, default=5.0, help="before each round, for the machine to become quiet")
    harness.add_common(add)
    return made


async def ask(server: Plain, load: Load, draw: Draw) -> Round:
    """Put a load on a server, once those of the last one rest; every prompt is new."""
    await asyncio.sleep(SPIN_S)
    drawn = [draw(load.prompt_tokens) for _ in range(load.requests)]
    return round_of(load, await asyncio.gather(*(server.ask(prompt, load.answer_tokens) for prompt in drawn)))


async def take(
    arguments: argparse.Namespace, network: Network, asked: Mapping[str, Plain], draw: Draw, meter: OtherCpu
) -> list[Cell]:
    """Take every cell; the ways take turns in each round, and each round begins with another."""
    cells = []
    for link in arguments.links:
        network.throttle(link)
        for load in LOADS:
            rounds: dict[str, list[Round]] = {way: [] for way in asked}
            for turn in range(arguments.rounds):
                await wait_until_quiet(meter, arguments.max_other_cpu, arguments.patience_s)
                for way in rotated(list(asked), turn):
                    rounds[way].append(await ask(asked[way], load, draw))
            cells.append(Cell(link_mbit_s=link, load=load, rounds=rounds))
            print(table(cells[-1:], WAY, [way for way in WAYS if way != WAY]), file=sys.stderr, flush=True)
    return cells


async def measure(arguments: argparse.Namespace, network: Network, forkserver: ForkServer, folder: Path) -> list[Cell]:
    """Start the servers, let each pass once, and take the cells."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    draw = prompts(arguments.seed)
    # Each request has a connection of its own: a kept one may be closed by a server that waited for its turn.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        processes = Processes(forkserver, folder, http)
        try:
            flags = ("--max-num-batched-tokens", str(arguments.chunk))
            asked = await servers.start(
                WAYS, flags, model=harness.MODEL, network=network, processes=processes, http=http
            )
            for server in [*asked.values()] * 2:  # first passes are slow
                for load in LOADS:
                    await ask(server, load, draw)
            return await take(arguments, network, asked, draw, OtherCpu(os.getpid()))
        finally:
            processes.stop()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)

    def take() -> int:
        harness.refuse_one_core()
        throttled = Network(throttled="lo")
        with throttled as network, harness.workplace("pipeline", logs=arguments.logs) as (forkserver, folder):
            bench_model.ensure(harness.MODEL, mlp=arguments.mlp)
            cells = asyncio.run(measure(arguments, network, forkserver, folder))
        print(table(cells, WAY, [way for way in WAYS if way != WAY]))
        return 0

    return harness.run("pipeline", take)


if __name__ == "__main__":
    sys.exit(main())
