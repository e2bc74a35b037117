"""`baton doctor`: on a machine, or with addresses at a running deployment."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from baton.contracts.configuration.load import ConfigError, choose_file, load
from baton.contracts.probe import MAX_IDLE_S
from baton.contracts.secret import SecretError, read_secret
from baton.deploy.admin_command import AdminError, verification
from baton.deploy.doctor import deployment, local, report
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.deployment import Targets
from baton.deploy.doctor.fit import Wanted
from baton.deploy.doctor.report import Examination

MIN_MBIT_S: Final = 1000.0
MAX_LATENCY_MS: Final = 5.0
IDLE_GAP_S: Final = 5.0


def main(argv: Sequence[str]) -> int:
    """Look, tell, and return 0 if nothing is wrong, else 1; 2 for a command line that cannot be understood."""
    options = _parser().parse_args(argv)
    targets = Targets(
        proxy=options.proxy.rstrip("/"),
        prefill=[url.rstrip("/") for url in options.prefill],
        decode=[url.rstrip("/") for url in options.decode],
    )
    if targets == Targets(prefill=[], decode=[]):
        found = local.examine(options.config, options.secret_file, options.role)
    else:
        found = _deployment(targets, options)
    print(report.as_json(found) if options.json else report.text(found))
    return report.status(found, strict=options.strict)


def _deployment(targets: Targets, options: argparse.Namespace) -> Examination:
    overrides = {"cluster.secret_file": options.secret_file} if options.secret_file else {}
    try:
        named = load(overrides, os.environ, choose_file(options.config)).config.cluster.secret_file
        if named is None:
            raise SecretError("no cluster secret is given: name its file with --secret-file")
        secret = read_secret(named)
    except (ConfigError, SecretError) as exc:
        return Examination(findings=[Finding(code="secret-file", where=local.HERE, what=str(exc))])
    try:
        verify = verification(named=True, ca_file=options.ca_file)
    except AdminError as exc:
        _parser().error(str(exc))
    wanted = Wanted(min_mbit_s=options.min_mbit_s, max_latency_ms=options.max_latency_ms)
    return asyncio.run(deployment.examine(targets, secret, wanted, options.idle_gap, verify=verify))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="baton doctor",
        description="Find what is wrong. Without addresses: on this machine, before anything is started. With --proxy, or "
        "--prefill and --decode: in a running deployment, each pair of nodes included; serving goes on.",
        epilog="Exit status: 0 nothing is wrong, 1 something is, 2 the command line is.",
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="default: baton.yaml, if there is one")
    add("--role", choices=("prefill", "decode", "proxy"), help="what is to run on this machine")
    add("--proxy", default="", metavar="URL", help="look at all nodes of this proxy")
    add("--prefill", nargs="+", default=[], metavar="URL", help="look at these prefill nodes")
    add("--decode", nargs="+", default=[], metavar="URL", help="look at these decode nodes")
    add("--ca-file", metavar="FILE", help="certificate authorities (PEM) to verify these URLs with")
    add("--secret-file", type=Path, metavar="FILE", help="the cluster secret; default: the configuration's")
    add("--min-mbit-s", type=float, default=MIN_MBIT_S, metavar="N", help="wanted of each pair (%(default)g)")
    add("--max-latency-ms", type=float, default=MAX_LATENCY_MS, metavar="N", help="of a small push (%(default)g)")
    add("--idle-gap", type=_pause, default=IDLE_GAP_S, metavar="S", help="pause before another push (%(default)g s)")
    add("--json", action="store_true", help="for programs")
    add("--strict", action="store_true", help="warnings count as well")
    return parser


def _pause(text: str) -> float:
    found = float(text)
    if not 0 <= found <= MAX_IDLE_S:
        raise argparse.ArgumentTypeError(f"between 0 and {MAX_IDLE_S:g}")
    return found
