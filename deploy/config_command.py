"""`baton config`: `check` prints the effective settings and where each comes from, `reference` what each means."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from baton.contracts.configuration.load import ConfigError, choose_file, load
from baton.contracts.configuration.show import effective, reference
from baton.contracts.secret import SecretError, read_secret

EXIT_WRONG = 2


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="baton config", description="Look at the configuration; nothing is started.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="check|reference")
    checking = commands.add_parser("check", help="print every setting's value and where it comes from")
    checking.add_argument("--config", type=Path, metavar="FILE", help="default: baton.yaml, if there is one")
    checking.add_argument("--secret-file", type=Path, metavar="FILE", help="check this cluster secret")
    telling = commands.add_parser("reference", help="print every setting's default and meaning, as a baton.yaml")
    telling.add_argument(
        "--markdown", action="store_true", help="as docs/configuration.md: with values, flags, variables"
    )
    options = parser.parse_args(argv)
    if options.command == "reference":
        if options.markdown:
            from baton.deploy.config_reference import page

            print(page(), end="")
        else:
            print(reference())
        return 0
    return _check(choose_file(options.config), options.secret_file)


def _check(file: Path | None, secret_file: Path | None) -> int:
    overrides = {"cluster.secret_file": secret_file} if secret_file else {}
    try:
        loaded = load(overrides, os.environ, file)
        if loaded.config.cluster.secret_file is not None:
            read_secret(loaded.config.cluster.secret_file)
    except (ConfigError, SecretError) as exc:
        print(exc, file=sys.stderr)
        return EXIT_WRONG
    print(effective(loaded))
    return 0
