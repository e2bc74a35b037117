"""What a Dockerfile says: stages with their instructions. Pure; it knows the instructions that ours use and no others."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

RUNNING: Final = ("ENTRYPOINT", "CMD", "HEALTHCHECK")
KNOWN: Final = frozenset({"ARG", "ENV", "RUN", "COPY", "USER", "WORKDIR", "EXPOSE", "SHELL", *RUNNING})
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class DockerfileError(Exception):
    """The file holds what is not understood here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: `COPY --from=wheel /a /b`."""

    name: str
    flags: Mapping[str, str]  # "from" → "wheel"
    text: str  # all behind the flags, on one line
    line: int

    @property
    def words(self) -> list[str]:
        """The operands: of the JSON form, or as a shell would split them."""
        return list(json.loads(self.text)) if self.is_json else shlex.split(self.text)

    @property
    def is_json(self) -> bool:
        """Whether it is a list of strings."""
        return self.text.startswith("[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """From one FROM to the next."""

    name: str  # "" if it has none
    base: str  # an image, or a stage's name; variables are replaced
    instructions: list[Instruction] = field(default_factory=list)


def stages(text: str) -> list[Stage]:
    """Read a Dockerfile.

    Raises:
        DockerfileError: there is an instruction that is not known here, or one before the first FROM.
    """
    found: list[Stage] = []
    defaults: dict[str, str] = {}
    for instruction in instructions(text):
        if instruction.name == "FROM":
            base, *alias = instruction.words
            name = alias[1] if len(alias) == 2 and alias[0].upper() == "AS" else ""
            found.append(Stage(name=name, base=expand(base, defaults)))
        elif not found and instruction.name == "ARG":
            name, _, value = instruction.text.partition("=")
            defaults[name] = value
        elif not found or instruction.name not in KNOWN:
            raise DockerfileError(f"line {instruction.line}: {instruction.name} is not known here")
        else:
            found[-1].instructions.append(instruction)
    return found


def instructions(text: str) -> Iterator[Instruction]:
    """Join continued lines and leave comments out."""
    joined, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        began = began or number
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield _instruction(joined, began)
            joined, began = "", 0


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$NAME` and `${NAME}`; one that is not there becomes nothing."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], ""), text)


def _instruction(line: str, number: int) -> Instruction:
    name, _, rest = line.strip().partition(" ")
    flags = {}
    rest = rest.strip()
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        key, _, value = flag[2:].partition("=")
        flags[key] = value
        rest = rest.strip()
    return Instruction(name=name.upper(), flags=flags, text=rest, line=number)
