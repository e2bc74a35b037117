"""`python -m benchmarks.runner`: what Baton's model runner costs beside the engine's own; about 4 minutes.

The same streams on three servers, by turns. The third one runs the engine's own runner as well: what its ratio differs from
1 is this machine's, not a runner's. On a CPU there is nothing to gain, since tokens lie on the host when they are sampled.
"""

import argparse
import asyncio
import math
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from baton.deploy.embedded_model import WEIGHTS
from baton.deploy.forkserver import ForkServer
from baton.loadtest.compare.resample import Interval, interval
from benchmarks import harness
from benchmarks.overlap.processes import VLLM, Place, Processes, free_port, processes
from benchmarks.overlap.session import prompts, rotated
from benchmarks.overlap.subjects import Answer, Plain

ENGINE: Final = "engine"
WORKERS: Final = {
    ENGINE: "baton.model_runner.cpu.EngineWorker",
    "baton": "baton.model_runner.cpu.Worker",
    "engine again": "baton.model_runner.cpu.EngineWorker",
}


class Load(NamedTuple):
    """What is asked at once."""

    name: str
    requests: int
    prompt_tokens: int
    answer_tokens: int  # two or more
    more: tuple[tuple[str, Any], ...] = ()  # fields of each request


class Round(NamedTuple):
    """One load on one server."""

    tokens_per_s: float  # prompts and answers
    ttft_s: float  # median over the requests
    itl_s: float  # median over the requests of their mean gap between tokens


Rounds = Mapping[str, Sequence[Round]]  # by server; the same index was taken one after the other

LOADS: Final = (
    Load("8 streams", requests=8, prompt_tokens=64, answer_tokens=48),
    Load("8 streams, 5 logprobs", requests=8, prompt_tokens=64, answer_tokens=48, more=(("logprobs", 5),)),
    Load("1 stream", requests=1, prompt_tokens=64, answer_tokens=64),
)
_FLAGS: Final = (
    *("--host", "127.0.0.1", *harness.QUIET),
    *("--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(256 << 20)),
)
REQUEST_TIMEOUT_S: Final = 120.0
CONFIDENCE: Final = 0.95
RESAMPLES: Final = 4000
FIGURES: Final = {"ITL": 2, "TTFT": 1, "throughput": 0}  # name → place in a `Round`


def round_of(load: Load, answers: Sequence[Answer]) -> Round:
    took_s = max(answer.times[-1] for answer in answers) - min(answer.began for answer in answers)
    gaps_s = [(answer.times[-1] - answer.times[0]) / (len(answer.times) - 1) for answer in answers]
    tokens = load.requests * (load.prompt_tokens + load.answer_tokens)
    return Round(tokens / took_s, median(answer.ttft_s for answer in answers), median(gaps_s))


class Ratio(NamedTuple):
    """A figure of one runner by that of another, over pairs of rounds that were taken one after the other."""

    mean: float  # geometric
    interval: Interval

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.interval.low:.3f} to {self.interval.high:.3f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the geometric mean of the pairs' ratios, with a bootstrap interval over the pairs."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    rng = random.Random(1)  # repeatable, not secret
    drawn = [fmean(rng.choices(logs, k=len(logs))) for _ in range(RESAMPLES)]
    low, high = interval(drawn, CONFIDENCE)
    return Ratio(math.exp(fmean(logs)), Interval(math.exp(low), math.exp(high)))


def table(taken: Mapping[Load, Rounds]) -> str:
    others = [name for name in WORKERS if name != ENGINE]
    heads = ["load", "figure", f"{ENGINE}, median", *(f"{name} ÷ {ENGINE}" for name in others)]
    rows = []
    for load, rounds in taken.items():
        for name, at in FIGURES.items():
            values = {server: [round_[at] for round_ in of_server] for server, of_server in rounds.items()}
            middle = median(values[ENGINE])
            shown = f"{middle:.0f} tokens/s" if name == "throughput" else f"{middle * 1000:.2f} ms"
            ratios = [str(ratio(values[other], values[ENGINE])) for other in others]
            rows.append([load.name, name, shown, *ratios])
    return harness.markdown_table(heads, rows)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.runner", description=__doc__)
    made.add_argument("--rounds", type=int, default=45, help="per load, of every server")
    made.add_argument("--seed", type=int, default=None, help="of the prompts; drawn anew unless given")
    return made


async def start(started: Processes) -> dict[str, Plain]:
    """Start a server for each worker class."""
    found = {}
    for name, worker in WORKERS.items():
        port = free_port()
        argv = ["--model", str(WEIGHTS), "--port", str(port), "--worker-cls", worker, *_FLAGS]
        place = Place(core=0, pinned=False)
        url = await started.serve(name, VLLM, argv, place, f"http://127.0.0.1:{port}")
        found[name] = Plain(http=started.http, model=str(WEIGHTS), url=url)
    return found


async def measure_round(server: Plain, load: Load, draw: Callable[[int], list[int]]) -> Round:
    """Put a load on a server; every prompt is new."""
    drawn = [draw(load.prompt_tokens) for _ in range(load.requests)]
    asked = (server.ask(prompt, load.answer_tokens, **dict(load.more)) for prompt in drawn)
    return round_of(load, await asyncio.gather(*asked))


async def measure(arguments: argparse.Namespace, forkserver: ForkServer, folder: Path) -> Mapping[Load, Rounds]:
    """Start the servers, let each pass twice, and measure; the servers take turns in each round."""
    draw = prompts(arguments.seed)
    async with processes(forkserver, folder, timeout_s=REQUEST_TIMEOUT_S, force_close=True) as started:
        servers = await start(started)
        for server in [*servers.values()] * 2:  # first passes are slow
            for load in LOADS:
                await measure_round(server, load, draw)
        rounds: dict[Load, dict[str, list[Round]]] = {load: {name: [] for name in servers} for load in LOADS}
        for turn in range(arguments.rounds):  # loads take turns as well, so that all see the same machine
            for load in LOADS:
                for name in rotated(list(servers), turn):
                    rounds[load][name].append(await measure_round(servers[name], load, draw))
        return rounds


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)

    def take() -> int:
        with harness.workplace("runner") as (forkserver, folder):
            taken = asyncio.run(measure(arguments, forkserver, folder))
        print(f"load average {os.getloadavg()[0]:.1f} at the end, {os.cpu_count()} cores, {arguments.rounds} rounds")
        print(table(taken))
        return 0

    return harness.run("runner", take)


if __name__ == "__main__":
    sys.exit(main())
