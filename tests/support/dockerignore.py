"""What a build gets to see of the repository: the rules of .dockerignore."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_WILDCARD = re.compile(r"(\*\*/|\*\*|\*|\?)")
_MEANING = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


class _Rule(NamedTuple):
    text: str
    pattern: re.Pattern[str]
    brings_back: bool


def files(root: Path) -> Iterator[str]:
    """Yield what is sent to the engine."""
    lines = (line.strip() for line in (root / ".dockerignore").read_text().splitlines())
    rules = [_rule(line) for line in lines if line and not line.startswith("#")]
    for folder, folders, names in os.walk(root):
        below = Path(folder).relative_to(root)
        folders[:] = [name for name in folders if not _is_closed((below / name).as_posix(), rules)]
        yield from (path for name in names if not _is_left_out(path := (below / name).as_posix(), rules))


def _rule(line: str) -> _Rule:
    text = line.removeprefix("!").strip("/")
    parts = (_MEANING.get(part, re.escape(part)) for part in _WILDCARD.split(text))
    return _Rule(text, re.compile("".join(parts)), line.startswith("!"))


def _is_left_out(path: str, rules: Sequence[_Rule]) -> bool:
    """Tell whether a file stays behind: the last rule that names it, or a folder that it is in, decides."""
    names = [path, *map(str, PurePosixPath(path).parents)][:-1]
    deciding = [rule for rule in rules if any(rule.pattern.fullmatch(name) for name in names)]
    return bool(deciding) and not deciding[-1].brings_back


def _is_closed(folder: str, rules: Sequence[_Rule]) -> bool:
    """Tell whether nothing in a folder can be brought back: then the builder need not look into it."""
    return _is_left_out(folder, rules) and not any(
        rule.brings_back and rule.text.startswith((f"{folder}/", "*")) for rule in rules
    )
