"""What a Dockerfile says: stages with their instructions, as far as ours need it. Pure."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_COMMENT: Final = re.compile(r"^\s*#.*\n", re.MULTILINE)
_FLAG: Final = re.compile(r"--([\w-]+)=?(\S*)\s+")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: `COPY --from=wheel /a /b`."""

    name: str
    flags: Mapping[str, str]  # "from" → "wheel"
    text: str  # all behind the flags, on one line

    @property
    def words(self) -> list[str]:
        """The operands: of the JSON form, or as a shell would split them."""
        return list(json.loads(self.text)) if self.text.startswith("[") else shlex.split(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    name: str  # "" if it has none
    base: str  # an image, or a stage's name; variables are replaced
    instructions: list[Instruction] = field(default_factory=list)


def stages(text: str) -> list[Stage]:
    found: list[Stage] = []
    defaults: dict[str, str] = {}
    for line in _COMMENT.sub("", text).replace("\\\n", "").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, *alias = rest.split()
            base = _VARIABLE.sub(lambda variable: defaults[variable[1] or variable[2]], base)
            found.append(Stage(name=alias[1] if alias else "", base=base))
        elif name == "ARG" and not found:
            variable, _, value = rest.partition("=")
            defaults[variable] = value
        elif name:
            found[-1].instructions.append(_instruction(name, rest.strip()))
    return found


def _instruction(name: str, rest: str) -> Instruction:
    flags = {}
    while flag := _FLAG.match(rest):
        flags[flag[1]] = flag[2]
        rest = rest[flag.end() :]
    return Instruction(name=name, flags=flags, text=rest)
