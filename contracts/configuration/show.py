"""Prints a configuration: the effective values with their origin, and the reference of every setting.

Both are valid `baton.yaml` files. Values that would tell a secret (an API key among vLLM's flags) are masked.
"""

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from baton.contracts.configuration.load import HINTS, Loaded
from baton.contracts.configuration.schema import BatonConfig

MASK = "***"
SECRET_FLAG = re.compile(r"--(?:[a-z-]*-)?(?:key|token|password|secret)(?=$|=)")
FIELD_COMMENT = re.compile(r"^ {4}(?P<field>\w+): .*?  # (?P<comment>.+)$", re.MULTILINE)


def effective(loaded: Loaded) -> str:
    """Return every setting with its value and, behind it, where the value came from."""
    return "\n".join(_lines(loaded.config, loaded.origin))


def reference() -> str:
    """Return every setting with its default and, behind it, what it means."""
    return "\n".join(_lines(BatonConfig(), meanings()))


def meanings() -> dict[str, str]:
    """Return `"section.field"` → what it means: the comments in the schema."""
    return {
        f"{section}.{match['field']}": match["comment"]
        for section, kind in get_type_hints(BatonConfig).items()
        for match in FIELD_COMMENT.finditer(inspect.getsource(kind))
    }


def _lines(config: BatonConfig, notes: dict[str, str]) -> Iterator[str]:
    last_section = ""
    for key in HINTS:
        section, _, name = key.partition(".")
        if section != last_section:
            yield f"{section}:"
            last_section = section
        line = f"  {name}: {_yaml(getattr(getattr(config, section), name))}"
        yield f"{line:<48}  # {notes[key]}" if key in notes else line


def _yaml(value: Any) -> str:
    """Return `value` on one line of YAML (JSON is YAML)."""
    if isinstance(value, tuple) and all(isinstance(word, str) for word in value):
        value = _masked(value)
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _masked(words: Sequence[str]) -> list[str]:
    """Hide what follows a flag such as `--api-key`, be it the rest of the word or the words up to the next flag."""
    shown: list[str] = []
    hiding = False
    for word in words:
        flag = SECRET_FLAG.match(word)
        if flag:
            shown.append(word if flag.end() == len(word) else f"{flag[0]}={MASK}")
            hiding = flag.end() == len(word)
        else:
            hiding = hiding and not word.startswith("--")
            shown.append(MASK if hiding else word)
    return shown
