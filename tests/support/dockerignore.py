"""What a build gets to see of the repository: the rules of .dockerignore."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: what it matches, and whether it brings that back."""

    text: str
    brings_back: bool

    @property
    def pattern(self) -> re.Pattern[str]:
        """What it matches."""
        return _expression(self.text)


def rules(text: str) -> list[Rule]:
    """Read the lines of a .dockerignore."""
    lines = (line.strip() for line in text.splitlines())
    return [
        Rule(line.removeprefix("!").strip("/"), line.startswith("!"))
        for line in lines
        if line and not line.startswith("#")
    ]


def is_left_out(path: str, found: Sequence[Rule]) -> bool:
    """Tell whether a file stays behind: the last rule that names it, or a folder that it is in, decides."""
    names = [path, *map(str, PurePosixPath(path).parents)][:-1]
    left_out = False
    for rule in found:
        if any(rule.pattern.fullmatch(name) for name in names):
            left_out = not rule.brings_back
    return left_out


def files(root: Path) -> Iterator[str]:
    """Yield what is sent to the engine."""
    found = rules((root / ".dockerignore").read_text())
    for folder, folders, names in os.walk(root):
        below = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not _is_closed((below / name).as_posix(), found)]
        for name in names:
            path = (below / name).as_posix()
            if not is_left_out(path, found):
                yield path


def _is_closed(folder: str, found: Sequence[Rule]) -> bool:
    """Tell whether nothing in a folder can be brought back: then nobody needs to look."""
    return is_left_out(folder, found) and not any(
        rule.brings_back and rule.text.startswith((f"{folder}/", "*")) for rule in found
    )


@lru_cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
        special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        parts.append(special.get(part, re.escape(part)))
    return re.compile("".join(parts))
