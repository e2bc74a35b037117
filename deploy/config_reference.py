"""The configuration reference as one page of Markdown: every setting, from the schema and the commands' own parsers.

`docs/configuration.md` is its output, and a test compares the two.
"""

import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

from baton.contracts.configuration.kinds import Form, Mappings, Range, ShellWords
from baton.contracts.configuration.load import HINTS, READ_ELSEWHERE, environment_name, flag_name
from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.configuration.show import meanings
from baton.deploy import serve
from baton.deploy.roles import command as roles
from baton.node import command as node
from baton.proxy import __main__ as proxy

BEGINNING = """# Configuration

This page is the output of `baton config reference --markdown`; edit `contracts/configuration/schema.py` instead.

A setting is a key in a section of `baton.yaml`, a variable of the environment, or a flag. A flag wins over the variable, the variable
over the file, the file over the default. All are read once, at start-up; every mistake is named before anything starts, an unknown
key together with the nearest right one. `--config FILE` names the file; without it, `baton.yaml` in the current folder counts if
there is one. One file can serve every process of a deployment: each takes the sections that it needs.

```yaml
proxy:
  port: 9000
  prefill: [http://10.0.0.1:8100]
transfer:
  kv_verify: sample:100
```

`baton config check` prints each setting's value with its origin, `baton config reference` a `baton.yaml` of all defaults.

In a variable or behind a flag a list is written with commas (`BATON_PROXY_DECODE=http://a:8200,http://b:8200`; flags of the proxy take
several words), `vllm_args` as a shell would read it, a list of mappings as JSON, and an empty text unsets a path.
`baton serve` hands every flag that is not its own on to all nodes: their settings' flags, and vLLM's. Behind `baton prefill` and
`baton decode` too, a flag that is not in these tables is one of vLLM's.
"""
ELSEWHERE = """
## Other variables

Read by a node's workers alone; no settings, so not in `baton.yaml`.

| variable | meaning |
|---|---|
"""
UNITS = {"s": "seconds", "bytes": "bytes", "share": "share", "port": "port", "descriptors": "copies"}
PAGE = re.compile(r"\b[a-z]+\.md\b")


def page() -> str:
    told = meanings()
    flags = commands_of_flags()
    parts = [BEGINNING, *(_section(kind, names, told, flags) for kind, names in _kinds().items()), ELSEWHERE]
    return "".join(parts) + "".join(f"| `{name}` | {meaning} |\n" for name, meaning in READ_ELSEWHERE.items())


def commands_of_flags() -> dict[str, list[str]]:
    has = {
        "serve": list(serve.keys()),
        "proxy": [action.dest for action in proxy.command_line()._actions],
        "prefill": node.keys("prefill"),
        "decode": node.keys("decode"),
        "roles": roles.keys(),
    }
    return {key: [command for command, keys in has.items() if key in keys] for key in HINTS}


def value_of(name: str, hint: Any) -> str:
    marks: tuple[object, ...] = ()
    if hasattr(hint, "__metadata__"):
        hint, *rest = get_args(hint)
        marks = tuple(rest)
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    for mark in marks:
        if isinstance(mark, Form):
            return mark.expected
    bounds = "".join(f", {mark}" for mark in marks if isinstance(mark, Range))
    return _type(name, hint, marks) + bounds


def _type(name: str, hint: Any, marks: tuple[object, ...]) -> str:
    if Mappings in marks:
        return "list of mappings"
    if get_origin(hint) is tuple:
        return "list of words" if ShellWords in marks else "list of texts"
    if hint in (int, float):
        plain = "whole number" if hint is int else "number"
        return UNITS.get(name.rpartition("_")[2], plain)
    return {bool: "true or false", str: "text"}.get(hint, "path")


def _kinds() -> dict[type, list[str]]:
    kinds: dict[type, list[str]] = {}
    for section, kind in get_type_hints(BatonConfig).items():
        kinds.setdefault(kind, []).append(section)
    return kinds


def _section(kind: type, sections: list[str], told: dict[str, str], flags: dict[str, list[str]]) -> str:
    names = [key.partition(".")[2] for key in HINTS if key.startswith(f"{sections[0]}.")]
    rows = "".join(f"{_row(sections, name, told, flags)}\n" for name in names)
    head = "| setting, variable | value | default | flag, of | meaning |\n|---|---|---|---|---|\n"
    return f"\n## {' and '.join(f'`{section}`' for section in sections)}\n\n{kind.__doc__}\n\n{head}{rows}"


def _row(sections: list[str], name: str, told: dict[str, str], flags: dict[str, list[str]]) -> str:
    keys = [f"{section}.{name}" for section in sections]
    cells = (
        "<br>".join([f"`{name}`", *(f"`{environment_name(key)}`" for key in keys)]),
        value_of(name, HINTS[keys[0]]),
        "; ".join(dict.fromkeys(_default(key) for key in keys)),
        _flag(keys, flags),
        PAGE.sub(lambda found: f"[{found[0]}]({found[0]})", told[keys[0]]),
    )
    return "| " + " | ".join(cells) + " |"


def _flag(keys: list[str], flags: dict[str, list[str]]) -> str:
    commands = list(dict.fromkeys(command for key in keys for command in flags[key]))
    return f"`{flag_name(keys[0])}`<br>{', '.join(commands)}" if commands else "–"


def _default(key: str) -> str:
    section, _, name = key.partition(".")
    value = getattr(getattr(BatonConfig(), section), name)
    if value in (None, "", ()):
        return "–"
    if isinstance(value, bool):
        value = str(value).lower()
    shown = f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
    if name.endswith("_bytes") and isinstance(value, int) and value >= 1024:
        unit, size = ("MiB", 1024**2) if value >= 1024**2 else ("KiB", 1024)
        shown += f" ({value / size:g} {unit})"
    return shown
