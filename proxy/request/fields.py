"""Looking at the fields of a JSON object without decoding their values.

A request's body is split once into top-level keys and raw values. Most values are handed on as they came, so that
no number, escape or unknown field is changed on the way, and a long prompt is not decoded to be encoded again.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

JsonKind = Literal["string", "array", "object", "boolean", "null", "number"]
Fields = Mapping[str, msgspec.Raw]

_KIND_OF_FIRST_BYTE: Final[dict[int, JsonKind]] = {
    ord('"'): "string",
    ord("["): "array",
    ord("{"): "object",
    ord("t"): "boolean",
    ord("f"): "boolean",
    ord("n"): "null",
}
_N: Final = ord("n")


def split(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the top-level fields of a JSON object.

    Raises:
        msgspec.DecodeError: the body is not JSON, or not an object (`msgspec.ValidationError`).
        RecursionError: it is nested too deeply.
    """
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw])


def kind_of(value: msgspec.Raw) -> JsonKind:
    return _KIND_OF_FIRST_BYTE.get(memoryview(value)[0], "number")


def is_set(fields: Fields, name: str) -> bool:
    value = fields.get(name)
    return value is not None and memoryview(value)[0] != _N


def is_false(fields: Fields, name: str) -> bool:
    """Return whether a field that is there is literally `false`."""
    return bytes(memoryview(fields[name])[:6]) == b"false"


def is_on(fields: Fields, name: str) -> bool:
    """Return whether a field is there and neither null nor false."""
    return is_set(fields, name) and not is_false(fields, name)


def is_one(fields: Fields, name: str) -> bool:
    """Return whether a field that is there is literally `1`."""
    return bytes(memoryview(fields[name])[:2]) == b"1"
