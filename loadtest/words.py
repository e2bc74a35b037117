"""What the command lines share: commands of a program, a parser whose errors are one line, and the kinds of numbers they take."""

import argparse
import importlib
import math
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

from baton.loadtest.errors import UsageError

EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


def run_command(
    program: str, commands: Mapping[str, tuple[str, str]], command: str, argv: Sequence[str], *, broken_pipe: int
) -> int:
    """Import and run a command; return its exit status. `commands`: name → module with `main(argv)`, what it does."""
    if command not in commands:
        asked = command in ("-h", "--help", "help")
        if command and not asked:
            print(f"{program}: there is no command {command!r}\n", file=sys.stderr)
        width, out = max(map(len, commands)), sys.stdout if asked else sys.stderr
        print(f"usage: {program} COMMAND …   (`{program} COMMAND --help` tells more)\n", file=out)
        print("\n".join(f"  {name:<{width}} {purpose}" for name, (_, purpose) in commands.items()), file=out)
        return 0 if asked else EXIT_USAGE
    try:
        status: int = importlib.import_module(commands[command][0]).main(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough; Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return broken_pipe
    return status


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help tells more)")


def parser(command: str, description: str) -> Parser:
    return Parser(prog=f"loadtest {command}", description=description, allow_abbrev=False)


def add_server(add: Callable[..., argparse.Action], of: str = "") -> None:
    add("--url", required=True, help=f"base URL{of}, with or without /v1")
    add("--model", type=_printable, help="the first one of /v1/models, unless given")
    add(
        "--api-key",
        type=_api_key,
        default="",
        metavar="KEY",
        help="sent as a bearer token; $OPENAI_API_KEY, unless given",
    )


def _api_key(given: str) -> str | None:
    found = (given or os.environ.get("OPENAI_API_KEY", "")).strip()
    if not sendable(found):
        raise argparse.ArgumentTypeError("the API key, or $OPENAI_API_KEY, has characters that are not printable ASCII")
    return found or None


def _printable(given: str) -> str:
    if not given.isprintable():  # such as a byte that is no UTF-8, which no request can hold
        raise argparse.ArgumentTypeError(f"{given!r} has characters that are not printable")
    return given


def _number(expected: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    """Return what reads a number of which something holds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from exc
        if not holds(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return value

    return read


above_0 = _number("above 0", lambda value: 0 < value < math.inf)
above_0_to_1 = _number("above 0 and at most 1", lambda value: 0 < value <= 1)
above_0_or_inf = _number("above 0", lambda value: value > 0)
not_negative = _number("0 or more", lambda value: 0 <= value < math.inf)
share = _number("at least 0 and below 1", lambda value: 0 <= value < 1)


def numbers(text: str) -> list[float]:
    return [above_0(part) for part in text.split(",")]


def token_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    found = _whole(low, 0), _whole(high, 1)
    if found[0] >= found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty range")
    return found


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not sendable(text):
        raise argparse.ArgumentTypeError(f"{name!r} is not of the form NAME: VALUE")
    return name.strip(), value.strip()


def sendable(text: str) -> bool:
    return text.isascii() and text.isprintable()


def drawn_seed() -> int:
    """Return a seed that no earlier run had: its prompts would be found in the nodes' prefix caches."""
    return secrets.randbelow(1 << 32)


def _whole(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
    return value


count = partial(_whole, least=1)
count_or_none = partial(_whole, least=0)
