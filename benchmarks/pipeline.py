"""`python -m benchmarks.pipeline`: asynchronous pipeline stages beside synchronous ones, on the same load. About 4 minutes.

It needs root, for a network namespace whose loopback it can slow down: what two stages in it send each other over gloo takes
that loopback, as if they were on two machines; clients do not.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, get_args

from baton.deploy.embedded_model import bench_model
from baton.deploy.forkserver import ForkServer
from baton.model_runner.pipeline.choose import VARIABLE, Transfer
from benchmarks import harness
from benchmarks.harness import QUIET, Spread, markdown_table, spread
from benchmarks.overlap.network import PREFILL_HTTP, Network
from benchmarks.overlap.processes import VLLM, Place, Processes, processes
from benchmarks.overlap.session import prompts, rotated, wait_until_quiet
from benchmarks.overlap.subjects import Answer, Plain
from benchmarks.usage import OtherCpu

WAY: Final = "async"
WAYS: Final = get_args(Transfer)
OTHERS: Final = [way for way in WAYS if way != WAY]
NAMES: Final = ("throughput", "TTFT", "ITL")  # of a `Round`, in order
SPIN_S: Final = 1.3  # vLLM's processes spin for 1 s after their last message, which disturbs the next way
REQUEST_TIMEOUT_S: Final = 120.0
FIRST_PORT: Final = 8100  # in the namespace every port is free
STAGES: Final = 2
_FLAGS: Final = (
    *("--host", "0.0.0.0", *QUIET),  # noqa: S104  # a namespace
    *("--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(256 << 20)),
    *("--worker-cls", "baton.model_runner.cpu.Worker", "--pipeline-parallel-size", str(STAGES)),
)

Draw = Callable[[int], list[int]]


class Load(NamedTuple):
    """What is asked at once."""

    name: str
    requests: int
    prompt_tokens: int
    answer_tokens: int
    more: tuple[tuple[str, Any], ...] = ()  # fields of each request


class Round(NamedTuple):
    """One load on one server."""

    tokens_per_s: float  # prompts and answers
    ttft_s: float  # median over the requests
    itl_s: float  # median over the requests of their mean gap between tokens; 0 if there was none


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on one link, in every way."""

    link_mbit_s: int  # 0: not throttled
    load: Load
    rounds: Mapping[str, Sequence[Round]]  # way → its rounds; the same index was taken one after the other


LOADS: Final = (
    Load("prompts", requests=4, prompt_tokens=1024, answer_tokens=1),
    Load("streams", requests=8, prompt_tokens=64, answer_tokens=48),
)


def round_of(load: Load, answers: Sequence[Answer]) -> Round:
    took_s = max(answer.times[-1] for answer in answers) - min(answer.began for answer in answers)
    gaps = [
        (answer.times[-1] - answer.times[0]) / (len(answer.times) - 1) for answer in answers if len(answer.times) > 1
    ]
    tokens = load.requests * (load.prompt_tokens + load.answer_tokens)
    return Round(tokens / took_s, median(answer.ttft_s for answer in answers), median(gaps) if gaps else 0.0)


def ratios(cell: Cell, way: str, other: str) -> dict[str, Spread]:
    found = {}
    pairs = list(zip(cell.rounds[way], cell.rounds[other], strict=True))
    for index, name in enumerate(NAMES):
        each = [ours[index] / theirs[index] for ours, theirs in pairs if theirs[index]]
        if each:
            found[name] = spread(each)
    return found


def table(cells: Sequence[Cell], way: str, others: Sequence[str]) -> str:
    heads = ["link", "load", "figure", f"{way}, median", *(f"÷ {other}" for other in others)]
    rows = []
    for cell in cells:
        against = [ratios(cell, way, other) for other in others]
        link = f"{cell.link_mbit_s} Mbit/s" if cell.link_mbit_s else "loopback"
        for index, name in enumerate(NAMES):
            middle = median(round_[index] for round_ in cell.rounds[way])
            if not middle:
                continue
            shown = f"{middle:.0f} tokens/s" if name == "throughput" else f"{middle * 1000:.1f} ms"
            ends = (f"{each[name].least:.2f} / {each[name].median:.2f} / {each[name].most:.2f}" for each in against)
            rows.append([link, cell.load.name, name, shown, *ends])
    return markdown_table(heads, rows)


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


async def ask(server: Plain, load: Load, draw: Draw, rest_s: float = SPIN_S) -> Round:
    """Put a load on a server, once the processes of the last one rest; every prompt is new."""
    await asyncio.sleep(rest_s)
    drawn = [draw(load.prompt_tokens) for _ in range(load.requests)]
    asked = (server.ask(prompt, load.answer_tokens, **dict(load.more)) for prompt in drawn)
    return round_of(load, await asyncio.gather(*asked))


async def take(
    arguments: argparse.Namespace, network: Network, asked: Mapping[str, Plain], draw: Draw, meter: OtherCpu
) -> list[Cell]:
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
            print(table(cells[-1:], WAY, OTHERS), file=sys.stderr, flush=True)
    return cells


async def start(started: Processes, network: Network, chunk_tokens: int) -> dict[str, Plain]:
    place = Place(netns=network.prefill, core=0, pinned=False)  # each stage takes the core that is free
    found = {}
    for port, way in enumerate(WAYS, FIRST_PORT):
        argv = ["--model", str(harness.MODEL), "--port", str(port), *_FLAGS]
        argv += ["--max-num-batched-tokens", str(chunk_tokens)]
        url = await started.serve(way, VLLM, argv, place, f"http://{PREFILL_HTTP}:{port}", env={VARIABLE: way})
        found[way] = Plain(http=started.http, model=str(harness.MODEL), url=url)
    return found


async def measure(arguments: argparse.Namespace, network: Network, forkserver: ForkServer, folder: Path) -> list[Cell]:
    draw = prompts(arguments.seed)
    async with processes(forkserver, folder, timeout_s=REQUEST_TIMEOUT_S, force_close=True) as started:
        asked = await start(started, network, arguments.chunk)
        for server in [*asked.values()] * 2:  # first passes are slow
            for load in LOADS:
                await ask(server, load, draw)
        return await take(arguments, network, asked, draw, OtherCpu(os.getpid()))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)

    def take() -> int:
        harness.refuse_one_core()
        throttled = Network(throttled="lo")
        with throttled as network, harness.workplace("pipeline", logs=arguments.logs) as (forkserver, folder):
            bench_model.ensure(harness.MODEL, mlp=arguments.mlp)
            cells = asyncio.run(measure(arguments, network, forkserver, folder))
        print(table(cells, WAY, OTHERS))
        return 0

    return harness.run("pipeline", take)


if __name__ == "__main__":
    sys.exit(main())
