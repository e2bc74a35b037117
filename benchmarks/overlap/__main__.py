"""`python -m benchmarks.overlap`: measure how much of the transfer the prefill hides. Root only; stop it with Ctrl-C."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args, get_type_hints

from baton.contracts.configuration.schema import TransferConfig
from baton.deploy.forkserver import ForkServer
from benchmarks import harness
from benchmarks.overlap.figures import UPSTREAM, Cell, Figures, figures, table, to_plain
from benchmarks.overlap.network import Network
from benchmarks.overlap.processes import two_nodes
from benchmarks.overlap.rig import put_up
from benchmarks.overlap.session import Session, prompts
from benchmarks.usage import OtherCpu

REQUEST_TIMEOUT_S: Final = 60.0


def parser() -> argparse.ArgumentParser:
    layer_syncs = get_args(get_type_hints(TransferConfig)["layer_sync"])
    variants = [*(name for name in layer_syncs if name != "auto"), UPSTREAM]
    made = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    add = made.add_argument
    add("--links", nargs="+", type=int, default=[200, 1000, 0], metavar="MBIT_S", help="0: unthrottled")
    add("--tokens", nargs="+", type=int, default=[128, 600, 1500, 3500], metavar="N", help="prompt lengths")
    add("--chunks", nargs="+", type=int, default=[512, 2048, 4096], metavar="N", help="P's --max-num-batched-tokens")
    add("--variants", nargs="+", choices=variants, default=variants)
    add("--cores", choices=("free", "pinned"), default="pinned", help="pinned: all threads of a node share one core")
    add("--samples", type=int, default=9, help="per variant and cell")
    add("--max-other-cpu", type=float, default=0.15, metavar="CORES", help="a round with more is taken again")
    add("--extra-rounds", type=int, default=6, help="per cell, to replace such rounds")
    add("--patience-s", type=float, default=15.0, help="before each round, for the machine to become quiet")
    add("--json", type=Path, metavar="FILE", help="write figures and all samples there")
    harness.add_common(add)
    return made


async def measure(arguments: argparse.Namespace, network: Network, forkserver: ForkServer, folder: Path) -> None:
    done: list[Figures] = []
    session = Session(
        draw=prompts(arguments.seed),
        meter=OtherCpu(os.getpid()),
        samples=arguments.samples,
        extra_rounds=arguments.extra_rounds,
        max_other_cores=arguments.max_other_cpu,
        patience_s=arguments.patience_s,
    )
    pinned = arguments.cores == "pinned"
    try:
        async with put_up(network, forkserver, folder, pinned=pinned, request_timeout_s=REQUEST_TIMEOUT_S) as rig:
            await rig.start(arguments.variants)
            for chunk in arguments.chunks:
                network.throttle(0)
                subjects = await rig.subjects(chunk, arguments.variants)
                cells = [Cell(link, tokens, chunk) for link in arguments.links for tokens in arguments.tokens]
                async for measured in rig.cells(cells, subjects, session):
                    done.append(figures(measured))
                    print(table(done[-1:]), flush=True)
    finally:
        if arguments.json:
            arguments.json.write_text(json.dumps(to_plain(done), indent=1) + "\n")
    print(f"\n{table(done)}")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)

    def measure_all() -> None:
        with two_nodes("overlap", arguments) as (network, forkserver, folder):
            asyncio.run(measure(arguments, network, forkserver, folder))

    return harness.run("overlap", measure_all)


if __name__ == "__main__":
    sys.exit(main())
