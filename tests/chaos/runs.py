"""The parts of a run, each with the servers that it needs: storm, kills, stalls, cuts."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from benchmarks.overlap.network import Network
from tests.chaos.actors import Actor, actor_for
from tests.chaos.bounds import Bounds
from tests.chaos.cluster import MAX_LENGTH_TOKENS, ROUTE, Cluster, Shape
from tests.chaos.ledger import Watch
from tests.chaos.links import LINK_MBIT_S, SpreadCluster, cutter_for
from tests.chaos.memory import Growth, growths, measure
from tests.chaos.orders import Orders
from tests.chaos.outcome import Outcome
from tests.chaos.phases import ORDER, Phase
from tests.chaos.results import add
from tests.chaos.schedule import Cut, Kill, Stall
from tests.chaos.storm import Storm
from tests.chaos.tally import Tally
from tests.chaos.trial import Trial
from tests.chaos.workload import BLOCK_BYTES, BLOCK_TOKENS, Reference, ask_reference, draw_prompts, next_turns
from tests.e2e.stack import FLOAT32, Server, Stack

SERVICE_S: Final = 15.0  # until a full house is answered by what is left, on two cores
PLAIN_BLOCKS: Final = 256
AnyFault = TypeVar("AnyFault", Kill | Stall, Cut)
WARM_UP_SHARE: Final = 0.3  # of a storm, before memory is measured


class StormSize(NamedTuple):
    """Which clients come, and when there have been enough of them."""

    seed: int
    aborts: int
    seconds: float
    at_once: int
    phases: tuple[Phase, ...] = ORDER  # in which they leave


class MeasuredStorm(NamedTuple):
    """A storm on a cluster and the same one on a plain server, and how the processes of both grew."""

    ours: Tally
    plain: Tally
    our_growth: list[Growth]
    plain_growth: list[Growth]


def plain_server(stack: Stack, *of_model: str, has_media: bool = False) -> Server:
    """A plain vLLM server that answers as our nodes must; on the last core, as vLLM's barriers are slow across two."""
    flags = [*FLOAT32, "--block-size", str(BLOCK_TOKENS), "--max-model-len", str(MAX_LENGTH_TOKENS)]
    flags += ["--kv-cache-memory-bytes", str(PLAIN_BLOCKS * BLOCK_BYTES), *of_model]
    server = stack.plain(*flags, **({"target": "tests.support.media_nodes:plain"} if has_media else {}))
    server.wait_ready()
    return server


def references_from(
    server: Server, model: str, seed: int, families: int, members: int, *, has_turns: bool = False
) -> list[Reference]:
    """Ask a plain server for the right answers; with `has_turns` to the prompts that follow them in a conversation as well."""
    references = asyncio.run(ask_reference(server.url, model, draw_prompts(seed, families, members)))
    if has_turns:
        references += asyncio.run(ask_reference(server.url, model, next_turns(seed, references)))
    return references


def bounds_of(shape: Shape) -> Bounds:
    """Return what a cluster must keep."""
    return Bounds(
        transfer=shape.transfer,
        request_timeout_s=shape.request_timeout_s,
        service_s=SERVICE_S,
        patience=shape.patience,
    )


def run_storm(cluster: Cluster, references: Sequence[Reference], size: StormSize, at_least: int = 0) -> Tally:
    """Let clients leave; `at_least` so many in each phase, however long that takes."""
    model, bounds = cluster.stack.model, bounds_of(cluster.shape)

    async def run() -> Tally:
        async with Watch(cluster.nodes, patience=cluster.shape.patience).running() as watch:
            storm = Storm(url=cluster.url, model=model, references=references, watch=watch, bounds=bounds)
            orders = Orders(cluster, size.seed)
            orders.start()
            tally = await storm.run(**size._asdict(), at_least=at_least)
            await orders.stop()
            tally.problems += await orders.restore()
            tally.orders = orders.counts
            return tally

    return asyncio.run(run())


def run_plain_storm(server: Server, model: str, references: Sequence[Reference], size: StormSize) -> Tally:
    """The same clients against a plain server; where their requests are is not known."""
    url, bounds = server.url + ROUTE, bounds_of(Shape())
    storm = Storm(url=url, model=model, references=references, watch=None, bounds=bounds)
    return asyncio.run(storm.run(**size._asdict()))


def run_measured_storm(
    cluster: Cluster, plain: Server, references: Sequence[Reference], size: StormSize
) -> MeasuredStorm:
    """A storm on the cluster and one on a plain server, each process's memory measured before and after.

    A first, smaller storm comes before: caches and pools of both have their size by then.
    """
    model = cluster.stack.model
    first = size._replace(seed=size.seed + 1_000, aborts=int(WARM_UP_SHARE * size.aborts))
    run_storm(cluster, references, first)
    run_plain_storm(plain, model, references, first)
    ours_before, plain_before = measure(cluster.servers), measure([plain])
    tally = run_storm(cluster, references, size)
    our_growth = growths(ours_before, measure(cluster.servers))
    plain_tally = run_plain_storm(plain, model, references, size)
    return MeasuredStorm(tally, plain_tally, our_growth, growths(plain_before, measure([plain])))


def run_faults(
    cluster: Cluster,
    references: Sequence[Reference],
    faults: Sequence[Kill | Stall],
    *,
    seed: int,
    seconds: float,
    orders: Orders | None = None,
    kept: Path | None = None,
) -> list[Outcome]:
    """Kill or stop processes, as orders come; each outcome is added to those that are `kept`."""
    actors = partial(actor_for, cluster)
    return asyncio.run(
        _trials(cluster, references, faults, actors, seed=seed, seconds=seconds, orders=orders, kept=kept)
    )


def run_cuts(
    stack: Stack,
    references: Sequence[Reference],
    faults: Sequence[Cut],
    *,
    shape: Shape,
    seed: int,
    seconds: float,
    kept: Path | None = None,
) -> list[Outcome]:
    """Cut links, in namespaces that are made for it."""
    with Network() as network:
        network.throttle(LINK_MBIT_S)
        cluster = SpreadCluster(stack, shape, network)

        def cutter(fault: Cut, _: str) -> Actor:
            return cutter_for(network, cluster, fault.way)

        try:
            return asyncio.run(_trials(cluster, references, faults, cutter, seed=seed, seconds=seconds, kept=kept))
        finally:
            cluster.stop()


async def _trials(
    cluster: Cluster,
    references: Sequence[Reference],
    faults: Sequence[AnyFault],
    actors: Callable[[AnyFault, str], Actor],
    *,
    seed: int,
    seconds: float,
    orders: Orders | None = None,
    kept: Path | None = None,
) -> list[Outcome]:
    orders = orders or Orders(cluster, seed)
    bounds = bounds_of(cluster.shape)
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    async with Watch(cluster.nodes, cluster.shape.transfer.quarantine_max_share, bounds.patience).running() as watch:
        trial = Trial(cluster=cluster, references=references, watch=watch, bounds=bounds, seed=seed, orders=orders)
        for fault in faults:
            if time.monotonic() - begun > seconds:
                break
            outcomes.append(await trial.run(fault, partial(actors, fault)))
            if kept is not None:
                add(kept, outcomes[-1:])
            print(f"{len(outcomes)} of {len(faults)}: {outcomes[-1]}", flush=True)
    return outcomes
