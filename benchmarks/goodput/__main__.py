"""`python -m benchmarks.goodput`: how many requests meet their SLOs on the same two nodes, set up in three ways. Root, two cores.

All setups get the same prompts at the same instants, in turns, each with nodes and a proxy of its own, which all run
from the beginning.
"""

import argparse
import asyncio
import json
import os
import random
import shlex
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

import msgspec

from baton.deploy.forkserver import ForkServer
from baton.loadtest.client.exchange import Exchange
from baton.loadtest.client.fetch import fetch
from baton.loadtest.client.http import Client, parse_address
from baton.loadtest.errors import UsageError
from baton.loadtest.plan.simulate import Shape
from baton.loadtest.report.text import table_markdown, table_text
from baton.loadtest.result import rounded
from baton.loadtest.run.environment import environment, now
from baton.loadtest.run.loops import Limits, Loop, Open
from baton.loadtest.traffic.made_up import Lengths
from baton.loadtest.traffic.script import Form
from benchmarks import harness
from benchmarks.goodput.idle import Idle, ask_prompts, measure_idle, meets_slos
from benchmarks.goodput.mixes import Kind, Traffic, mixes, plan_traffic
from benchmarks.goodput.report import Measured, count_plans, goodput_table, median_error
from benchmarks.goodput.rig import Rig
from benchmarks.overlap.network import Network
from benchmarks.overlap.processes import PAIRS, Servers, processes, two_nodes
from benchmarks.usage import OtherCpu

# Plain servers are decode nodes, since the proxy takes no others: without a prefill node they compute prompts as vLLM
# does. The nodes of the last three send and receive, and those of the last one change their roles by load.
SETUPS: Final = {
    "plain": Shape(0, 2),
    "disaggregated": Shape(1, 1),
    "baton": Shape(1, 1),
    "1p2d": Shape(1, 2),
    "2p1d": Shape(2, 1),
    "controlled": Shape(1, 2),
}
TWO_NODES: Final = ["plain", "disaggregated", "baton"]
REQUEST_TIMEOUT_S: Final = 120.0
DRAIN_S: Final = 60.0  # for what is under way after the last arrival; then it is given up
MAX_REQUESTS: Final = 10_000  # of one run
# Outputs of 2 tokens or more: one comes from P alone.
WARMING: Final = Kind("warming", Lengths(input_tokens=700, output_tokens=16, spread=0.9))
WARM_UP: Final = 16  # requests, more than a proxy needs to predict a node's times
PROXY_WORDS: Final = "of the proxy: flags, and settings as BATON_PROXY_…=…; quote them and write = before them"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.goodput", description=__doc__)
    add, names = made.add_argument, list(mixes(1.0))
    add("--mix", nargs="+", choices=names, default=names)
    add("--only", nargs="+", choices=list(SETUPS), default=TWO_NODES)
    add("--seconds", type=float, default=120.0, help="time in which conversations begin, for each mix, setup and round")
    add("--rounds", type=int, default=1, help="rounds; in each, all setups take turns, with prompts of its own")
    add("--utilisation", type=float, default=0.7, help="load ÷ all that two plain servers can do")
    add("--rate", type=float, help="requests per second, in place of --utilisation")
    add("--shift-s", type=float, default=60.0, help="how long one kind of request comes in `shifting`")
    add("--cores", type=float, default=0.7, help="CPU quota of each node")
    add("--dtype", default="auto", help="of the nodes; float32 where the CPU emulates bfloat16, as without AVX-512")
    add(
        "--link",
        nargs="+",
        type=float,
        default=[0.0],
        metavar="BIT_S",
        help="limits of the data link, one run each; 0: none",
    )
    for setup in SETUPS:
        words = PAIRS if setup == "disaggregated" else ()
        add(f"--{setup}-flags", type=shlex.split, default=[*words], metavar="WORDS", help=PROXY_WORDS)
    add("--roles-flags", type=shlex.split, default=[], metavar="WORDS", help="of `baton roles`, for `controlled`")
    add("--out", type=Path, metavar="FOLDER", help="write goodput.json and tables.md there")
    harness.add_common(add)
    return made


async def measure(given: argparse.Namespace, network: Network, forkserver: ForkServer, folder: Path) -> None:
    found: list[Measured] = []
    async with processes(forkserver, folder, timeout_s=REQUEST_TIMEOUT_S) as made:
        rig = Rig(Servers(network, made), cores=given.cores, dtype=given.dtype)
        try:
            plain = await rig.start(SETUPS["plain"], given.plain_flags)
            idle = await measure_idle(exchange_with(plain.decode[0]), given.seed)
            rig.stop()
            proxies = {setup: await start_setup(rig, setup, given) for setup in given.only}
            for link, mix in product(given.link, given.mix):
                network.throttle(round(link / 1e6))
                first = len(found)
                for at in range(given.rounds):
                    traffic = plan_mix(mix, idle, given, len(found))  # no prompt comes twice: it would be cached
                    about = f"{mix}, link {link:g}, round {at + 1}: {traffic.requests} requests in {given.seconds:g} s"
                    print(about, file=sys.stderr, flush=True)
                    for setup, proxy in proxies.items():
                        found.append(await measure_setup(mix, setup, proxy, traffic, link=link, idle=idle, given=given))
                    if given.out:  # what there is so far: a later part may fail
                        write(given, idle, found)
                print(table_text(goodput_table(found[first:])), file=sys.stderr, flush=True)
        finally:
            rig.stop()
    print(table_markdown(goodput_table(found)))


async def start_setup(rig: Rig, setup: str, given: argparse.Namespace) -> str:
    """Start a setup's nodes and its proxy, and ask it the warm-up's prompts; return the proxy's URL."""
    running = await rig.start(
        SETUPS[setup],
        getattr(given, f"{setup}_flags"),
        both_ways=setup not in TWO_NODES,
        roles_words=given.roles_flags if setup == "controlled" else None,
    )
    await ask_prompts(exchange_with(running.proxy), WARMING, WARM_UP, at_once=2, seed=given.seed)
    return running.proxy


def plan_mix(mix: str, idle: Idle, given: argparse.Namespace, number: int = 0) -> Traffic:
    """Plan the traffic of a round; `number`: another one has other prompts. Raises `UsageError`: it has no request, or too many."""
    parts, load = mixes(given.shift_s)[mix], given.utilisation * SETUPS["plain"].decode
    if given.rate:
        load = given.rate / sum(part.share * part.on_s / part.every_s / idle.cost_s(part.kind) for part in parts)
    traffic = plan_traffic(parts, idle.cost_s, load=load, seconds=given.seconds, seed=given.seed + number)
    if not 0 < traffic.requests <= MAX_REQUESTS:
        raise UsageError(f"{mix} would have {traffic.requests} requests, and 1 to {MAX_REQUESTS} are possible")
    return traffic


async def measure_setup(
    mix: str, setup: str, proxy: str, traffic: Traffic, *, link: float, idle: Idle, given: argparse.Namespace
) -> Measured:
    exchange, stop, until_s = exchange_with(proxy), asyncio.Event(), given.seconds + DRAIN_S
    plans, ratios = count_plans(await fetch(parse_address(proxy), "/metrics", {}))
    meter = OtherCpu(os.getpid())
    asyncio.get_running_loop().call_later(until_s, stop.set)
    loop = Loop(exchange, traffic, Limits(requests=traffic.requests, seconds=until_s))
    records = (await loop.run(Open(due_s=traffic.due_s), stop)).records
    other_cores = meter.other_cores()
    exchange.client.close()
    plans_after, ratios_after = count_plans(await fetch(parse_address(proxy), "/metrics", {}))
    ratios_after.subtract(ratios)  # `-` would drop buckets of 0
    return Measured(
        mix=mix,
        link_bit_s=link,
        setup=setup,
        seconds=given.seconds,
        requests=traffic.requests,
        good=sum(meets_slos(record, idle) for record in records),
        plans=plans_after - plans,
        prediction_error=median_error(ratios_after),
        other_cores=other_cores,
        records=records,
    )


def exchange_with(url: str) -> Exchange:
    return Exchange(Client(parse_address(url), {}, REQUEST_TIMEOUT_S), Form(model=str(harness.MODEL), chat=False))


def write(given: argparse.Namespace, idle: Idle, found: Sequence[Measured]) -> None:
    about = {"when": now(), **environment(), "arguments": {name: str(value) for name, value in vars(given).items()}}
    plain = rounded({"about": about, "idle": idle._asdict(), "measured": msgspec.to_builtins(found)}, 6)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "goodput.json").write_text(json.dumps(plain) + "\n")
    (given.out / "tables.md").write_text(table_markdown(goodput_table(found)) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    given = parser().parse_args(argv)
    given.seed = random.randrange(1 << 30) if given.seed is None else given.seed

    def measure_all() -> None:
        if any(0 < link < 1e6 for link in given.link):
            raise UsageError("--link is in bit/s: 1e6 at least")
        with two_nodes("goodput", given) as (network, forkserver, folder):
            asyncio.run(measure(given, network, forkserver, folder))

    return harness.run("goodput", measure_all)


if __name__ == "__main__":
    sys.exit(main())
