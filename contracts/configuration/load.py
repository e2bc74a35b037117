"""Reads `baton.yaml`, the environment and flags, once, into one frozen `BatonConfig`.

A flag wins over the environment (`BATON_<SECTION>_<FIELD>`), the environment over the file, the file over the
default. Every mistake is found before anything starts, and all of them are reported together.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from baton.contracts.configuration import strict_yaml
from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.configuration.values import convert

DEFAULT_FILE = Path("baton.yaml")
ENVIRONMENT_PREFIX = "BATON_"
DEFAULT_ORIGIN = "default"
READ_ELSEWHERE = {  # variables of our own that are no settings: they are read inside vLLM's workers
    "BATON_PIPELINE_TRANSFER": "how pipeline stages on a CPU hand tensors on: `async` (default), `sync` or `shm`",
    "BATON_CPU_ASYNC_SCHEDULING": "1: a node of one rank on a CPU schedules a step ahead",
}


class ConfigError(ValueError):
    """The configuration has mistakes; `problems` holds one sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The effective configuration and where each value came from."""

    config: BatonConfig
    origin: dict[str, str]  # "section.field" → "default", the file, "environment BATON_…" or "flag --…"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One value as found in one source."""

    key: str  # "section.field", perhaps unknown
    value: object
    origin: str
    where: str  # what a complaint names: the origin and the key as its author wrote it


def load(argv_overrides: Mapping[str, Any], environ: Mapping[str, str], file: Path | None) -> Loaded:
    """Merge all sources; raises `ConfigError` for unknown keys, wrong types, values out of range, an unreadable file.

    Args:
        argv_overrides: `"section.field"` → value or text, for every flag that was given.
        environ: the process environment; only `BATON_…` is looked at.
        file: the YAML file; None for no file.
    """
    problems: list[str] = []
    found = _from_file(file, problems) if file else []
    found += _from_environment(environ, problems)
    found += [_from_flag(key, value) for key, value in argv_overrides.items()]
    values: dict[str, object] = {}
    origin = dict.fromkeys(HINTS, DEFAULT_ORIGIN)
    for setting in found:
        _accept(setting, values, origin, problems)
    if problems:
        raise ConfigError(problems)
    return Loaded(config=_build(values), origin=origin)


def choose_file(given: Path | None) -> Path | None:
    """Return the file that `--config` names, else `baton.yaml` in the current directory if there is one."""
    if given is None and DEFAULT_FILE.is_file():
        return DEFAULT_FILE
    return given


def environment_name(key: str) -> str:
    """Return the environment variable of a key: `proxy.port` → `BATON_PROXY_PORT`."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def flag_name(key: str) -> str:
    """Return the flag of a key: `cluster.secret_file` → `--secret-file`."""
    return "--" + key.rpartition(".")[2].replace("_", "-")


def _hints() -> dict[str, Any]:
    """Return `"section.field"` → type for every setting of the schema, in the schema's order."""
    sections = get_type_hints(BatonConfig)
    return {
        f"{section}.{name}": hint
        for section, kind in sections.items()
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


HINTS = _hints()
SECTIONS = tuple(section.name for section in fields(BatonConfig))
_KEY_OF_VARIABLE = {environment_name(key): key for key in HINTS}


def _from_file(file: Path, problems: list[str]) -> list[_Setting]:
    try:
        document = strict_yaml.parse(file.read_text(encoding="utf-8"))
    except OSError as exc:
        problems.append(f"cannot read {file}: {exc.strerror}")
        return []
    except (strict_yaml.YamlError, UnicodeDecodeError) as exc:
        problems.append(f"{file} is not valid YAML: {exc}")
        return []
    return list(_settings_of(document, str(file), problems))


def _settings_of(document: object, file: str, problems: list[str]) -> Iterable[_Setting]:
    """Flatten a YAML document of sections into settings; report what is not of that shape."""
    if document is not None and not isinstance(document, dict):
        problems.append(f"{file}: expected sections ({', '.join(SECTIONS)}), found {document!r}")
        return
    for section, body in (document or {}).items():
        if section not in SECTIONS:
            problems.append(_unknown(f"{file}: {section}", str(section), SECTIONS))
        elif body is not None and not isinstance(body, dict):
            problems.append(f"{file}: section {section!r} must hold `key: value` lines, found {body!r}")
        else:
            for name, value in (body or {}).items():
                key = f"{section}.{name}"
                yield _Setting(key=key, value=value, origin=file, where=f"{file}: {key}")


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> list[_Setting]:
    settings = []
    for name, text in environ.items():
        if name in _KEY_OF_VARIABLE:
            where = f"environment {name}"
            settings.append(_Setting(key=_KEY_OF_VARIABLE[name], value=text, origin=where, where=where))
        elif name.startswith(ENVIRONMENT_PREFIX) and name not in READ_ELSEWHERE:
            problems.append(_unknown(f"environment {name}", name, _KEY_OF_VARIABLE))
    return settings


def _from_flag(key: str, value: object) -> _Setting:
    where = f"flag {flag_name(key)}"
    return _Setting(key=key, value=value, origin=where, where=where)


def _accept(setting: _Setting, values: dict[str, object], origin: dict[str, str], problems: list[str]) -> None:
    """Convert one setting and let it override what was there; report it if it is unknown or wrong."""
    if setting.key not in HINTS:
        problems.append(_unknown(setting.where, setting.key, HINTS))
        return
    try:
        values[setting.key] = convert(setting.value, HINTS[setting.key])
    except ValueError as exc:
        problems.append(f"{setting.where}: expected {exc}, found {setting.value!r}")
        return
    origin[setting.key] = setting.origin


def _unknown(where: str, name: str, right_ones: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, list(right_ones), n=1, cutoff=0)
    return f"{where} is not a setting; did you mean {nearest[0]}?"


def _build(values: Mapping[str, object]) -> BatonConfig:
    default = BatonConfig()
    sections: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.partition(".")
        sections[section] = replace(sections.get(section, getattr(default, section)), **{name: value})
    return replace(default, **sections)
