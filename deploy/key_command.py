"""`baton key`: make an API key, or check a file of them."""

import argparse
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from baton.proxy.auth.key_file import KeyFileError, digest_of, parse, read

EXIT_WRONG = 2
PREFIX = "sk-baton-"  # so that scanners of published code know it for a secret
ENTRY = """\
# For the file that proxy.api_keys_file names, under `keys:`
  {name}:
    sha256: "{digest}"
    # requests_at_once: 16
    # requests_per_minute: 600
    # models: [MODEL]
    # expires: 2030-01-31

# For its owner; it is shown this once
{key}"""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="baton key", description="API keys of the proxy's clients.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="new|check")
    making = commands.add_parser("new", help="print a fresh key, and its entry for the file; nothing is written")
    making.add_argument("name", metavar="NAME", help="of its owner, for metrics and logs")
    checking = commands.add_parser("check", help="check a file of keys")
    checking.add_argument("file", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    try:
        said = _new(options.name) if options.command == "new" else _check(options.file)
    except KeyFileError as exc:
        print(f"baton key: {exc}", file=sys.stderr)
        return EXIT_WRONG
    print(said)
    return 0


def _new(name: str) -> str:
    key = PREFIX + secrets.token_urlsafe(32)
    said = ENTRY.format(name=name, digest=digest_of(key.encode()).hex(), key=key)
    parse("keys:\n" + said.removesuffix(key))  # a name that the file could not have
    return said


def _check(file: Path) -> str:
    keys = read(file)
    return f"{file}: {len(keys)} keys" + "".join(f"\n  {key.name}" for key in keys)
