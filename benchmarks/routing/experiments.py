"""The two experiments; each returns the rows of its table."""

import argparse
import random
import sys
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from baton.loadtest.traffic.trace_replay import read_trace
from baton.proxy.routing.policies import LeastLoad, Policy, PowerOfTwo, PrefixAffinity, RoundRobin
from benchmarks.routing.policies import draw_node, follow_longest_prefix, follow_work_left
from benchmarks.routing.servers import Served, Server
from benchmarks.routing.simulation import Proxy, Simulation
from benchmarks.routing.workload import draw_arrivals, spread_arrivals, write_prompts

Row = dict[str, str | int | float]  # by column
SHARES: Final = {"P50": 0.5, "P99": 0.99, "max": 1.0}


def run_trace(given: argparse.Namespace) -> list[Row]:
    """Replay the trace with each policy on caches of each size; figures are means over the runs."""
    written = write_prompts(read_trace(given.file))
    arrivals = [spread_arrivals(written, random.Random(given.seed + run)) for run in range(given.runs)]
    everything = Server(0, given.tokens_per_s, sys.maxsize)
    bound = describe_run([everything.submit(one) for one in written], [everything])
    rows: list[Row] = []
    for blocks in given.cache_blocks:
        oracle = 0.0
        for name in ("longest cached prefix, all known", "prefix_affinity", "least_load", "round_robin"):
            runs = []
            for seed, requests in enumerate(arrivals, given.seed):
                servers = [Server(slot, given.tokens_per_s, blocks) for slot in range(given.nodes)]
                known: dict[str, type[Policy]] = {
                    "prefix_affinity": PrefixAffinity,
                    "least_load": LeastLoad,
                    "round_robin": RoundRobin,
                }
                policy = known[name]() if name in known else follow_longest_prefix(servers, requests)
                served = Simulation([Proxy(policy, servers)], servers, seed).run(requests, given.probe_interval_s)
                runs.append(describe_run(served, servers))
            means = {figure: fmean(run[figure] for run in runs) for figure in runs[0]}
            oracle = oracle or means["hit rate"]
            rows.append({"cache": blocks, "policy": name, **means, "÷ first": means["hit rate"] / oracle})
        shared: Row = {figure: bound[figure] for figure in ("hit rate", "computed tokens")}
        rows.append(
            {
                "cache": blocks,
                "policy": "one cache for all, without end",
                **shared,
                "÷ first": bound["hit rate"] / oracle,
            }
        )
    return rows


def describe_run(served: Sequence[Served], servers: Sequence[Server]) -> dict[str, float]:
    computed = [one.computed_tokens for one in servers]
    to_end_s = sorted(one.end_s - one.request.at_s for one in served)
    return {
        "hit rate": 1 - sum(computed) / sum(one.request.tokens for one in served),
        "computed tokens": sum(computed) / len(served),  # per request
        "mean s": fmean(to_end_s),  # from arrival to end
        "P99 s": pick(to_end_s, 0.99),
        "busiest ÷ mean": max(computed) / fmean(computed),
    }


def run_fleet(given: argparse.Namespace) -> list[Row]:
    """Send Poisson arrivals to the proxies; what queues and waits are in the first half, while they grow, does not count."""
    lengths = [request.input_length for request in read_trace(given.file)]
    rate_per_s = given.utilisation * given.nodes * given.tokens_per_s / fmean(lengths)
    baton: dict[str, type[Policy]] = {
        "prefix_affinity": PrefixAffinity,
        "least_load": LeastLoad,
        "power_of_two": PowerOfTwo,
    }
    rows: list[Row] = []
    for name in ("random", "least work left, all known", *baton):
        servers = [Server(slot, given.tokens_per_s) for slot in range(given.nodes)]
        others = follow_work_left(servers) if rows else draw_node()
        count = given.proxies if name in baton else 1
        proxies = [Proxy(baton[name]() if name in baton else others, servers) for _ in range(count)]
        simulation = Simulation(proxies, servers, given.seed)
        arrivals = draw_arrivals(lengths, rate_per_s, given.seconds, random.Random(given.seed))
        served = simulation.run(arrivals, given.probe_interval_s)
        samples = simulation.work_left_s[len(simulation.work_left_s) // 2 :]
        left_s = sorted(one for sample in samples for one in sample)
        waits_s = sorted(one.wait_s for one in served if one.request.at_s >= given.seconds / 2)
        queue = {f"{label} ÷ mean": pick(left_s, at) / fmean(left_s) for label, at in SHARES.items()}
        wait = {"mean wait s": fmean(waits_s), "P99 wait s": pick(waits_s, 0.99)}
        rows.append({"policy": name, "proxies": count, "mean work left s": fmean(left_s), **queue, **wait})
        rows[-1]["÷ random"] = fmean(waits_s) / float(rows[0]["mean wait s"])
    return rows


def pick(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
