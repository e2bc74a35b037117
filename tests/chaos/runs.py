"""The parts of a run, each with the servers that it needs: storm, kills, stalls, cuts."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.overlap.network import Network
from tests.chaos.actors import Actor, actor_for, heals_after_s
from tests.chaos.bounds import Bounds
from tests.chaos.cluster import BLOCK_BYTES, MAX_LENGTH_TOKENS, ROUTE, Cluster, Shape
from tests.chaos.ledger import Watch
from tests.chaos.links import LINK_MBIT_S, SpreadCluster, cutter_for
from tests.chaos.memory import Growth, growths, measure
from tests.chaos.outcome import Outcome
from tests.chaos.schedule import Cut, Fault, Kill, Stall
from tests.chaos.storm import Storm
from tests.chaos.tally import Tally
from tests.chaos.trial import Trial
from tests.chaos.workload import BLOCK_TOKENS, Reference, ask_reference, draw_prompts
from tests.e2e.stack import FLOAT32, Server, Stack

SERVICE_S: Final = 15.0  # until a full house is answered by what is left, on two cores
PLAIN_BLOCKS: Final = 256
WARM_UP_SHARE: Final = 0.3  # of a storm, before memory is measured


@dataclass(slots=True, kw_only=True)
class MemoryReport:
    """How processes grew under the same storm."""

    ours: list[Growth] = field(default_factory=list)
    plain: list[Growth] = field(default_factory=list)


def plain_server(stack: Stack) -> Server:
    """A plain vLLM server that answers as our nodes must; on the last core, as vLLM's barriers are slow across two."""
    flags = [*FLOAT32, "--block-size", str(BLOCK_TOKENS), "--max-model-len", str(MAX_LENGTH_TOKENS)]
    flags += ["--kv-cache-memory-bytes", str(PLAIN_BLOCKS * BLOCK_BYTES)]
    server = stack.plain(*flags)
    server.wait_ready()
    return server


def references_from(server: Server, model: str, seed: int, families: int, members: int) -> list[Reference]:
    """Ask a plain server for the right answers."""
    return asyncio.run(ask_reference(server.url, model, draw_prompts(seed, families, members)))


def bounds_of(shape: Shape) -> Bounds:
    """Return what a cluster must keep."""
    return Bounds(
        transfer=shape.transfer,
        request_timeout_s=shape.request_timeout_s,
        service_s=SERVICE_S,
        patience=shape.patience,
    )


def run_storm(
    cluster: Cluster,
    references: Sequence[Reference],
    *,
    seed: int,
    aborts: int,
    seconds: float,
    at_once: int,
    at_least: int = 0,
) -> Tally:
    """Let clients leave; `at_least` so many in each phase, however long that takes."""

    async def run() -> Tally:
        async with Watch(cluster.nodes, patience=cluster.shape.patience).running() as watch:
            storm = Storm(
                url=cluster.url,
                model=cluster.stack.model,
                references=references,
                watch=watch,
                bounds=bounds_of(cluster.shape),
                column_bytes=cluster.column_bytes,
            )
            return await storm.run(seed=seed, aborts=aborts, seconds=seconds, at_once=at_once, at_least=at_least)

    return asyncio.run(run())


def run_plain_storm(
    server: Server, model: str, references: Sequence[Reference], *, seed: int, aborts: int, seconds: float, at_once: int
) -> Tally:
    """The same clients against a plain server; where their requests are is not known."""
    storm = Storm(
        url=server.url + ROUTE,
        model=model,
        references=references,
        watch=None,
        bounds=bounds_of(Shape()),
        column_bytes=BLOCK_BYTES,
    )
    return asyncio.run(storm.run(seed=seed, aborts=aborts, seconds=seconds, at_once=at_once))


def run_measured_storm(
    cluster: Cluster,
    plain: Server,
    references: Sequence[Reference],
    *,
    seed: int,
    aborts: int,
    seconds: float,
    at_once: int,
) -> tuple[Tally, Tally, MemoryReport]:
    """A storm on the cluster and one on a plain server, each process's memory measured before and after.

    A first, smaller storm comes before: caches and pools of both have their size by then.
    """
    model, warm = cluster.stack.model, int(WARM_UP_SHARE * aborts)
    run_storm(cluster, references, seed=seed + 1_000, aborts=warm, seconds=seconds, at_once=at_once)
    run_plain_storm(plain, model, references, seed=seed + 1_000, aborts=warm, seconds=seconds, at_once=at_once)
    ours_before, plain_before = measure(cluster.servers), measure([plain])
    tally = run_storm(cluster, references, seed=seed, aborts=aborts, seconds=seconds, at_once=at_once)
    ours_after = measure(cluster.servers)
    plain_tally = run_plain_storm(plain, model, references, seed=seed, aborts=aborts, seconds=seconds, at_once=at_once)
    report = MemoryReport(ours=growths(ours_before, ours_after), plain=growths(plain_before, measure([plain])))
    return tally, plain_tally, report


def run_faults(
    cluster: Cluster, references: Sequence[Reference], faults: Sequence[Kill | Stall], *, seed: int, seconds: float
) -> list[Outcome]:
    """Kill or stop processes."""

    def actors(fault: Fault) -> Callable[[str], Actor]:
        assert isinstance(fault, Kill | Stall)
        return lambda victim: actor_for(cluster, fault, victim)

    def role_and_length(fault: Fault) -> tuple[str, float]:
        assert isinstance(fault, Kill | Stall)
        return fault.victim, heals_after_s(fault)

    return asyncio.run(
        _trials(cluster, references, faults, seed=seed, seconds=seconds, actors=actors, role_and_length=role_and_length)
    )


def run_cuts(
    stack: Stack, references: Sequence[Reference], faults: Sequence[Cut], *, shape: Shape, seed: int, seconds: float
) -> list[Outcome]:
    """Cut links, in namespaces that are made for it."""
    with Network() as network:
        network.throttle(LINK_MBIT_S)
        cluster = SpreadCluster(stack, shape, network)

        def actors(fault: Fault) -> Callable[[str], Actor]:
            assert isinstance(fault, Cut)
            return lambda _: cutter_for(network, cluster, fault.way)

        def role_and_length(fault: Fault) -> tuple[str, float]:
            assert isinstance(fault, Cut)
            return "link", fault.lasts_s

        try:
            return asyncio.run(
                _trials(
                    cluster,
                    references,
                    faults,
                    seed=seed,
                    seconds=seconds,
                    actors=actors,
                    role_and_length=role_and_length,
                )
            )
        finally:
            cluster.stop()


async def _trials(
    cluster: Cluster,
    references: Sequence[Reference],
    faults: Sequence[Fault],
    *,
    seed: int,
    seconds: float,
    actors: Callable[[Fault], Callable[[str], Actor]],
    role_and_length: Callable[[Fault], tuple[str, float]],
) -> list[Outcome]:
    bounds = bounds_of(cluster.shape)
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    async with Watch(cluster.nodes, cluster.shape.transfer.quarantine_max_share, bounds.patience).running() as watch:
        trial = Trial(cluster=cluster, references=references, watch=watch, bounds=bounds, seed=seed)
        for fault in faults:
            if time.monotonic() - begun > seconds:
                break
            role, length_s = role_and_length(fault)
            outcomes.append(await trial.run(fault, role, fault.phase, length_s, actors(fault)))
            print(f"{len(outcomes)} of {len(faults)}: {outcomes[-1]}", flush=True)
    return outcomes
