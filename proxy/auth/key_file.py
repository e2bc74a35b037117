"""The file with API keys: from its text to `Key`s, or to one sentence that says what is wrong with it. Pure.

keys:
  team-a:
    sha256: 3f1c…              # of the key; two in a list while one replaces the other
    requests_at_once: 16
    requests_per_minute: 600
    models: [llama-3]
    expires: 2027-01-31        # 00:00 UTC of that day, or a time
  team-b:
    key: a-key-in-plain-text
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from baton.contracts.configuration import strict_yaml

MIN_KEY_CHARS: Final = 16
MAX_KEYS: Final = 10_000
_AtLeastOne = Annotated[int, Meta(ge=1)]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_PLAIN: Final = re.compile(r"[\x21-\x7e]+")  # what can stand in a header


class KeyFileError(ValueError):
    """The file cannot be used; the message says why and never shows a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key: the digests of what clients show, and what its owner may ask for."""

    name: str
    digests: tuple[bytes, ...]  # SHA-256 of what clients show; any of them opens
    requests_at_once: int | None = None
    requests_per_minute: int | None = None
    models: frozenset[str] | None = None  # None: all
    expires_at_s: float | None = None  # seconds since the epoch


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One key as it is written."""

    sha256: str | list[str] | None = None
    key: str | None = None
    requests_at_once: _AtLeastOne | None = None
    requests_per_minute: _AtLeastOne | None = None
    models: list[str] | None = None
    expires: Any = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, _Entry] | None


def parse(text: str) -> tuple[Key, ...]:
    """Understand a file. Raises `KeyFileError`: something in it is wrong."""
    try:
        found = msgspec.convert(strict_yaml.parse(text), _File).keys or {}
    except strict_yaml.YamlError as exc:
        raise KeyFileError(f"it is not valid YAML: {_where(exc)}") from None
    except msgspec.ValidationError as exc:
        raise KeyFileError(f"it is not a file of API keys (`baton key new` shows the form): {exc}") from None
    except (ValueError, RecursionError):  # a date that is none; nested beyond reason
        raise KeyFileError("it holds a value that makes no sense") from None
    if len(found) > MAX_KEYS:
        raise KeyFileError(f"it has {len(found)} keys, {MAX_KEYS} may be")
    keys = tuple(_key(name, entry) for name, entry in found.items())
    owners: dict[bytes, str] = {}
    for key in keys:
        for digest in key.digests:
            if (owner := owners.setdefault(digest, key.name)) != key.name:
                raise KeyFileError(f"'{owner}' and '{key.name}' have the same key")
    return keys


def read(path: Path) -> tuple[Key, ...]:
    """Read a file. Raises `KeyFileError`: it is missing or unreadable, or something in it is wrong."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise KeyFileError(f"cannot read the API keys from {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise KeyFileError(f"cannot read the API keys from {path}: it is no text") from exc
    except KeyFileError as exc:
        raise KeyFileError(f"{path}: {exc}") from None


def digest_of(key: bytes) -> bytes:
    return sha256(key).digest()


def _key(name: str, entry: _Entry) -> Key:
    if not _NAME.fullmatch(name):
        raise KeyFileError(f"{name!r} is no name: 1 to 64 letters, digits and . _ @ - are")
    if (entry.sha256 is None) == (entry.key is None):
        raise KeyFileError(f"'{name}' needs either 'sha256' or 'key'")
    if entry.models == []:
        raise KeyFileError(f"'{name}': 'models' is empty; leave it out if all are allowed")
    return Key(
        name=name,
        digests=_plain(name, entry.key) if entry.key is not None else _digests(name, entry.sha256),
        requests_at_once=entry.requests_at_once,
        requests_per_minute=entry.requests_per_minute,
        models=None if entry.models is None else frozenset(entry.models),
        expires_at_s=None if entry.expires is None else _instant_s(name, entry.expires),
    )


def _plain(name: str, key: str) -> tuple[bytes, ...]:
    if len(key) < MIN_KEY_CHARS or not _PLAIN.fullmatch(key):
        raise KeyFileError(f"'{name}': 'key' must have at least {MIN_KEY_CHARS} characters, ASCII without spaces")
    return (digest_of(key.encode()),)


def _digests(name: str, written: str | list[str] | None) -> tuple[bytes, ...]:
    texts = [written] if isinstance(written, str) else written or []
    if not texts or not all(_DIGEST.fullmatch(text) for text in texts):
        raise KeyFileError(f"'{name}': 'sha256' must be 64 hexadecimal digits, or a list of such")
    return tuple(bytes.fromhex(text) for text in texts)


def _instant_s(name: str, written: Any) -> float:
    """Return when a key expires: a time, or the beginning of a day; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(written) if isinstance(written, str) else written
    except ValueError:
        when = None
    if isinstance(when, date) and not isinstance(when, datetime):
        when = datetime(when.year, when.month, when.day, tzinfo=UTC)
    if not isinstance(when, datetime):
        raise KeyFileError(f"'{name}': 'expires' must be a date or a time, such as 2027-01-31 or 2027-01-31T12:00:00Z")
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _where(exc: Exception) -> str:
    """Say where a mistake is, but not what is written there: that may be a key."""
    problem, mark = getattr(exc, "problem", None), getattr(exc, "problem_mark", None)
    return f"{problem or 'a mistake'}, line {mark.line + 1}" if mark is not None else str(problem or "a mistake")
