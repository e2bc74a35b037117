"""What a build gets to see of the repository: the rules of .dockerignore."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: what it matches, and whether it brings that back."""

    pattern: re.Pattern[str]
    brings_back: bool


def rules(text: str) -> list[Rule]:
    """Read the lines of a .dockerignore."""
    lines = (line.strip() for line in text.splitlines())
    return [
        Rule(re.compile(_expression(line.removeprefix("!").strip("/"))), line.startswith("!"))
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
        folders[:] = [name for name in folders if name != ".git"]
        for name in names:
            path = (Path(folder) / name).relative_to(root).as_posix()
            if not is_left_out(path, found):
                yield path


def send(root: Path, target: Path) -> None:
    """Copy the context."""
    for name in files(root):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)


def _expression(pattern: str) -> str:
    parts = []
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
        special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        parts.append(special.get(part, re.escape(part)))
    return "".join(parts)
