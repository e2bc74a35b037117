"""`python -m tests.chaos`: bring chaos upon a real stack for some time, and print what it did."""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from baton.contracts.configuration.schema import TransferConfig
from tests.chaos.cluster import BOTH_WAYS, Shape
from tests.chaos.page import put
from tests.chaos.parts import PARTS, SHARES, Amounts, Run
from tests.chaos.phases import ORDER, Phase
from tests.e2e.stack import running_stack


def main() -> int:
    """Run and print; exit with 1 if something did not hold."""
    arguments = _parser().parse_args()
    transfer = replace(
        TransferConfig(),
        kv_verify=arguments.verify,
        peer_timeout_s=arguments.peer_timeout,
        both_ways=arguments.both_ways,
    )
    shape = Shape(transfer=transfer, patience=arguments.patience, **(BOTH_WAYS if arguments.both_ways else {}))
    phases = (Phase[arguments.phase.upper()],) if arguments.phase else ORDER
    amounts = Amounts(**{name: getattr(arguments, name) for name in PARTS})
    chosen = [arguments.only] if arguments.only else [part for part in PARTS if SHARES[part]]
    sections = {}
    with _folder(arguments.logs) as folder, running_stack(folder) as stack:
        run = Run(stack, shape, seed=arguments.seed, amounts=amounts, phases=phases, kept=arguments.add)
        for part in chosen:
            share = SHARES[part] if len(chosen) > 1 else 1.0
            sections[part] = run.do(part, share * arguments.seconds)
    problems = "\n".join(run.problems) or "none"
    text = "\n\n".join([*sections.values(), f"Problems: {problems}\n"])
    print(text)
    if arguments.page:
        page = arguments.page.read_text()
        for part, section in sections.items():
            page = put(page, part, section)
        arguments.page.write_text(page)
    return 1 if run.problems else 0


@contextmanager
def _folder(chosen: Path | None) -> Iterator[Path]:
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="baton-chaos-") as made:
        yield Path(made)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults, over all parts; starts not counted")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=PARTS, help="one part; without it all but silences")
    parser.add_argument(
        "--phase",
        choices=[phase.name.lower() for phase in ORDER],
        help="of requests, for aborts and kills; without it all",
    )
    parser.add_argument(
        "--peer-timeout", type=float, default=TransferConfig().peer_timeout_s, help="of the nodes, seconds"
    )
    parser.add_argument(
        "--both-ways",
        action="store_true",
        help="nodes send and receive: answers return, and streams are moved and roles changed at random",
    )
    parser.add_argument(
        "--patience", type=float, default=1.0, help="times as long as a quiet machine may this one take"
    )
    parser.add_argument("--verify", default="off", help="transfer.kv_verify: off, full or sample:N")
    for amount in fields(Amounts):
        parser.add_argument(f"--{amount.name}", type=int, default=amount.default, help="at most")
    parser.add_argument("--add", type=Path, help="outcomes are kept in this file; the report is of all that are there")
    parser.add_argument("--logs", type=Path, help="folder for the servers' logs; without it they are thrown away")
    parser.add_argument("--page", type=Path, help="a page with a marked place for each part, such as docs/failures.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
