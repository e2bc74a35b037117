"""What the README tells a newcomer to type, as it stands there."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

README: Final = Path(__file__).parents[2] / "README.md"
SECTION: Final = "Try it on a laptop"
PORT: Final = "8000"  # unless PORT= says otherwise
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class ReadmeError(Exception):
    """The README does not say what a newcomer needs; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Lines for a shell."""

    serve: str
    request: str
    more: str  # two nodes of each role
    more_request: str  # `request`, with the port of `more`


def commands(text: str) -> Commands:
    """Find them in the text of a README. Raises `ReadmeError`: the section, or a command, is not there."""
    found = list(_commands(_section(text)))
    serve = _first((each for each in found if shlex.split(each, comments=True) == ["make", "serve"]), "`make serve`")
    request = _first((each for each in found if shlex.split(each)[0] == "curl"), "a curl")
    more = _first((each for each in found if {"PREFILL=2", "DECODE=2"} <= set(shlex.split(each))), "2P2D")
    port = next((word.partition("=")[2] for word in shlex.split(more) if word.startswith("PORT=")), PORT)
    if f":{PORT}/" not in request:
        raise ReadmeError(f"its curl does not go to port {PORT}, where `make serve` listens")
    return Commands(serve=serve, request=request, more=more, more_request=request.replace(f":{PORT}/", f":{port}/"))


def _section(text: str) -> str:
    _, heading, rest = text.partition(f"\n## {SECTION}\n")
    if not heading:
        raise ReadmeError(f"there is no section {SECTION!r}")
    return rest.partition("\n## ")[0]


def _commands(section: str) -> Iterator[str]:
    """Each command of each block; one goes on as long as a quote is open."""
    for block in _BLOCK.findall(section):
        lines: list[str] = []
        for line in block.splitlines():
            lines.append(line)
            command = "\n".join(lines)
            if line.strip() and not command.endswith("\\") and _closed(command):
                yield command
                lines = []
        if lines:
            raise ReadmeError(f"a quote stays open: {lines[0]}")


def _closed(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def _first(found: Iterator[str], what: str) -> str:
    command = next(found, None)
    if command is None:
        raise ReadmeError(f"section {SECTION!r} has no command for {what}")
    return command
