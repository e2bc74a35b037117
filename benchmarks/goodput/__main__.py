"""`python -m benchmarks.goodput`: how many requests meet their SLOs on the same two nodes, set up in three ways. Root, two cores.

All setups get the same prompts at the same instants, one setup after the other, each with nodes and a proxy of its own.
"""

import argparse
import asyncio
import json
import os
import random
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from baton.deploy.embedded_model import bench_model
from baton.deploy.forkserver import ForkServer
from baton.loadtest.client.exchange import Exchange
from baton.loadtest.client.fetch import fetch
from baton.loadtest.client.http import Client, parse_address
from baton.loadtest.errors import UsageError
from baton.loadtest.report.text import table_markdown, table_text
from baton.loadtest.result import rounded
from baton.loadtest.run.beside import CostMeter
from baton.loadtest.run.environment import environment, now
from baton.loadtest.run.loops import Limits, Loop, Open
from baton.loadtest.traffic.script import Form
from benchmarks import harness
from benchmarks.goodput.idle import Idle, ask_prompts, measure_idle
from benchmarks.goodput.mixes import Traffic, load_of, mixes, plan_traffic
from benchmarks.goodput.report import Measured, ProxyCounts, as_plain, goodput_table, parse_counts
from benchmarks.goodput.setups import PLAIN, SETUPS, Running, Stage
from benchmarks.overlap.network import Network
from benchmarks.overlap.processes import processes
from benchmarks.overlap.session import rotated
from benchmarks.usage import OtherCpu

REQUEST_TIMEOUT_S: Final = 120.0
DRAIN_S: Final = 60.0  # for what is under way after the last arrival; then it is given up
MAX_REQUESTS: Final = 10_000  # of one run of one mix
_WARM_UP: Final = 16  # requests, more than a proxy needs to predict a node's times


@dataclass(slots=True)
class Taken:
    """What has been measured so far."""

    idle: Idle | None = None
    found: list[Measured] = field(default_factory=list)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=__doc__)
    add, names = made.add_argument, list(mixes(1.0))
    add("--mix", nargs="+", choices=names, default=names)
    add("--only", nargs="+", choices=SETUPS, default=list(SETUPS), metavar="SETUP", help=f"of {', '.join(SETUPS)}")
    add("--seconds", type=float, default=120.0, help="in which conversations begin, per mix, setup and round")
    add("--rounds", type=int, default=1, help="of all mixes and setups, each with prompts and arrivals of its own")
    add("--utilisation", type=float, default=0.7, help="load ÷ all that two plain servers can do")
    add("--rate", type=float, help="requests per second, in place of --utilisation")
    add("--shift-s", type=float, default=60.0, help="how long one kind of request comes in `shifting`")
    add("--cores", type=float, default=0.7, help="CPU quota of each node")
    add("--link", type=float, default=0.0, metavar="BIT_S", help="throttle between the nodes; 0: none")
    for name in SETUPS:
        add(f"--{name}-flags", type=shlex.split, default=[], metavar="FLAGS", help=f"of the proxy; --{name}-flags='…'")
    add("--out", type=Path, metavar="FOLDER", help="write goodput.json and tables.md there")
    harness.add_common(add)
    return made


async def measure(
    given: argparse.Namespace, network: Network, forkserver: ForkServer, folder: Path, taken: Taken
) -> None:
    network.throttle(round(given.link / 1e6))
    async with processes(forkserver, folder, timeout_s=REQUEST_TIMEOUT_S) as made:
        stage = Stage(network, made, folder, cores=given.cores)
        try:
            plain = await _start(stage, PLAIN, given)
            taken.idle = await measure_idle(_exchange(plain.nodes[0]), given.seed)
            for turn in range(given.rounds):
                for mix in given.mix:
                    traffic = traffic_of(mix, taken.idle, given, seed=given.seed + turn)
                    _say(f"{mix}: {traffic.requests} requests in {given.seconds:g} s")
                    for setup in rotated(given.only, turn):
                        taken.found.append(await _measure_setup(stage, setup, mix, traffic, given))
                        _say(table_text(goodput_table(taken.found[-1:], taken.idle)))
        finally:
            stage.stop()
    print(table_markdown(goodput_table(taken.found, taken.idle)))


def traffic_of(mix: str, idle: Idle, given: argparse.Namespace, *, seed: int) -> Traffic:
    """Plan one run of a mix. Raises `UsageError`: it has no request, or too many."""
    parts = mixes(given.shift_s)[mix]
    cost_s = {part.kind.name: part.kind.cost_s(idle.ttft_s, idle.token_s) for part in parts}
    load = given.utilisation * len(SETUPS[PLAIN])
    if given.rate:
        load = load_of(parts, cost_s, given.rate, given.seconds)
    traffic = plan_traffic(parts, cost_s, load=load, seconds=given.seconds, seed=seed)
    if not 0 < traffic.requests <= MAX_REQUESTS:
        raise UsageError(f"{mix} would have {traffic.requests} requests, and 1 to {MAX_REQUESTS} are possible")
    return traffic


async def _measure_setup(stage: Stage, setup: str, mix: str, traffic: Traffic, given: argparse.Namespace) -> Measured:
    running = await _start(stage, setup, given)
    exchange, stop = _exchange(running.proxy), asyncio.Event()
    await ask_prompts(exchange, "warm", 700, _WARM_UP, at_once=2, output=4, spread=0.9, seed=given.seed)
    before, meter, other = await _counts(running), CostMeter(), OtherCpu(os.getpid())
    asyncio.get_running_loop().call_later(given.seconds + DRAIN_S, stop.set)
    async with meter.measuring():
        loop = Loop(exchange, traffic, Limits(requests=traffic.requests, seconds=given.seconds + DRAIN_S))
        records = (await loop.run(Open(due_s=traffic.due_s), stop)).records
    assert meter.cost is not None
    exchange.client.close()
    return Measured(
        mix=mix,
        setup=setup,
        seconds=given.seconds,
        requests=traffic.requests,
        records=records,
        counts=(await _counts(running)).since(before),
        client=meter.cost,
        other_cores=other.other_cores(),
        throttled=stage.throttled(),
    )


async def _start(stage: Stage, setup: str, given: argparse.Namespace) -> Running:
    return await stage.start(setup, getattr(given, f"{setup}_flags"))


async def _counts(running: Running) -> ProxyCounts:
    return parse_counts((await fetch(parse_address(running.proxy), "/metrics", {})).decode())


def _exchange(url: str) -> Exchange:
    return Exchange(Client(parse_address(url), {}, REQUEST_TIMEOUT_S), Form(model=str(harness.MODEL), chat=False))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(folder: Path, given: argparse.Namespace, taken: Taken, began_at: str) -> None:
    if taken.idle is None or not taken.found:
        return
    asked: dict[str, Any] = {name: value for name, value in vars(given).items() if name not in ("out", "logs")}
    about = {"when": began_at, **environment(), "arguments": asked}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "goodput.json").write_text(json.dumps(rounded(as_plain(taken.found, taken.idle, about), 6)) + "\n")
    (folder / "tables.md").write_text(table_markdown(goodput_table(taken.found, taken.idle)) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    given, taken, began_at = parser().parse_args(argv), Taken(), now()
    given.seed = random.randrange(1 << 30) if given.seed is None else given.seed

    def take() -> int:
        if 0 < given.link < 1e6:
            raise UsageError("--link is in bit/s: 1e6 at least")
        harness.refuse_one_core()
        try:
            with Network() as network, harness.workplace("goodput", logs=given.logs) as (forkserver, folder):
                bench_model.ensure(harness.MODEL, mlp=given.mlp)
                asyncio.run(measure(given, network, forkserver, folder, taken))
        finally:
            if given.out:  # also after Ctrl-C, and after a part that failed
                write(given.out, given, taken, began_at)
        return 0

    return harness.run("goodput", take)


if __name__ == "__main__":
    sys.exit(main())
