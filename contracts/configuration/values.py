"""One setting: from YAML or text to the type that the schema asks for.

`convert` is pure. It takes what a YAML file holds, or the text of an environment variable or flag, and returns the
value, or raises `ValueError` with what was expected ("an integer between 0 and 65535").
"""

import json
import math
import shlex
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from baton.contracts.configuration.kinds import Form, Mappings, Range, ShellWords

TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")


def convert(value: object, hint: Any) -> object:
    """Return `value` as the type that `hint` names.

    Args:
        value: what a YAML file holds, or the text of an environment variable or flag: a number or list may be a text.
        hint: a type of the schema: int, float, bool, str, Path, a `Literal`, `tuple[str, ...]`, `Objects`, one of these
            or None, and `Annotated` forms of them.

    Raises `ValueError`, which says what was expected, for a value of another type or out of range.
    """
    marks: Sequence[object] = ()
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        if value is None or value == "":
            return None
        hint = next(kind for kind in get_args(hint) if kind is not types.NoneType)
    if get_origin(hint) is Literal:
        return _choice(value, get_args(hint))
    if Mappings in marks:
        return _mappings(value)
    if get_origin(hint) is tuple:
        return _words(value, by_shell=ShellWords in marks)
    if hint in (int, float):
        return _number(value, hint, [mark for mark in marks if isinstance(mark, Range)])
    if forms := [mark for mark in marks if isinstance(mark, Form)]:
        return _text(value, forms)
    return _plain(value, hint)


def _choice(value: object, choices: Sequence[object]) -> object:
    if isinstance(value, bool):  # YAML reads a bare `on` or `off` so
        value = "on" if value else "off"
    if value in choices:
        return value
    raise ValueError("one of " + ", ".join(map(str, choices)))


def _words(value: object, *, by_shell: bool) -> tuple[str, ...]:
    if isinstance(value, str):
        return _shell_words(value) if by_shell else tuple(filter(None, map(str.strip, value.split(","))))
    if isinstance(value, list | tuple) and not any(isinstance(word, dict | list | bool | type(None)) for word in value):
        return tuple(map(str, value))
    raise ValueError("a list of texts")


def _mappings(value: object) -> tuple[dict[str, object], ...]:
    expected = "a list of mappings, as text in JSON"
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except ValueError:
            raise ValueError(expected) from None
    if not isinstance(value, list | tuple) or not all(isinstance(item, dict) for item in value):
        raise ValueError(expected)
    return tuple(value)


def _shell_words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as exc:
        raise ValueError(f"words as a shell reads them ({exc})") from exc


def _number(value: object, kind: type[int] | type[float], ranges: Sequence[Range]) -> float:
    expected = " ".join(["an integer" if kind is int else "a number", *map(str, ranges)])
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or isinstance(value, str) or (kind is float and isinstance(value, float))):
        raise ValueError(expected)
    try:
        number = kind(cast("str | float", value))
    except ValueError:
        raise ValueError(expected) from None
    if not math.isfinite(number) or not all(r.holds(number) for r in ranges):
        raise ValueError(expected)
    return number


def _text(value: object, forms: Sequence[Form]) -> str:
    text = "off" if value is False else value  # YAML reads a bare `off` as false
    for form in forms:
        if not (isinstance(text, str) and form.holds(text)):
            raise ValueError(form.expected)
    return str(text)


def _plain(value: object, kind: type) -> object:
    if kind is bool:
        return _truth(value)
    if isinstance(value, str):
        return Path(value).expanduser() if kind is Path else value
    if kind is Path and isinstance(value, Path):
        return value
    raise ValueError("a path" if kind is Path else "a text")


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else ""
    if word in (*TRUE_WORDS, *FALSE_WORDS):
        return word in TRUE_WORDS
    raise ValueError("true or false")
