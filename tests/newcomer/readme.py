"""What the README tells a newcomer to type, as it stands there."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

README: Final = Path(__file__).parents[2] / "README.md"
SECTION: Final = "Try it on a laptop"
PORT: Final = "8000"  # unless PORT= says otherwise
_SERVE: Final = re.compile(r"^make serve\b.*$", re.MULTILINE)
_REQUEST: Final = re.compile(r"^curl (?:[^'\n]|'[^']*')*$", re.MULTILINE)  # goes on as long as a quote is open
_MORE: Final = re.compile(r"^PREFILL=2 DECODE=2 PORT=(\d+) make serve$", re.MULTILINE)


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
    section = text.partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    serve = _found(_SERVE, section)
    request = _found(_REQUEST, section)
    more = _found(_MORE, section)
    if f":{PORT}/" not in request[0]:
        raise ReadmeError(f"its curl does not go to port {PORT}, where `make serve` listens")
    more_request = request[0].replace(f":{PORT}/", f":{more[1]}/")
    return Commands(serve=serve[0], request=request[0], more=more[0], more_request=more_request)


def _found(pattern: re.Pattern[str], section: str) -> re.Match[str]:
    if (found := pattern.search(section)) is None:
        raise ReadmeError(f"section {SECTION!r} has no command like {pattern.pattern}")
    return found
