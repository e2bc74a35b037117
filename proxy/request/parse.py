"""Reading one request: its body once, its fields split but mostly undecoded, wrong types refused. Parsing is pure."""

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import AHEAD
from baton.contracts.kv_transfer import FIELD as KV_TRANSFER_PARAMS
from baton.contracts.kv_transfer import Start
from baton.proxy.errors import BadRequestError, BodyTooLargeError, ClientGoneError
from baton.proxy.http import headers
from baton.proxy.request.endpoints import CHAT, MESSAGES, RESPONSES
from baton.proxy.request.fields import Fields, JsonKind, is_set, kind_of, split
from baton.proxy.tracing.traces import UNTRACED, Trace

DISCARD_S: Final = 5.0

# What a node's connectors read is never the client's to write, neither as a field nor through `vllm_xargs`.
_CONNECTOR_FIELDS: Final = frozenset((KV_TRANSFER_PARAMS, "ec_transfer_params"))
_XARGS: Final = "vllm_xargs"

_NUMBER: Final[frozenset[JsonKind]] = frozenset(("number", "null"))
_BOOLEAN: Final[frozenset[JsonKind]] = frozenset(("boolean", "null"))
_INTEGERS: Final = ("n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "seed", "priority")
_INTEGER: Final = TypeAdapter(int)
_FLOATS: Final = ("temperature", "top_p")
_BOOLEANS: Final = ("stream", "echo")
# Only what we look at or replace, and what everybody gets wrong; the decode node judges the rest.
_KINDS: Final[dict[str, frozenset[JsonKind]]] = {
    "model": frozenset(("string", "null")),
    "messages": frozenset(("array",)),
    "prompt": frozenset(("string", "array", "null")),
    "stream_options": frozenset(("object", "null")),
    _XARGS: frozenset(("object", "null")),
    **dict.fromkeys(_BOOLEANS, _BOOLEAN),
    **dict.fromkeys((*_INTEGERS, *_FLOATS), _NUMBER),
}
# vLLM's pydantic models read `"3"` as 3 and `"true"` or 1 as true; clients that send forms rely on it.
_LAX_TYPES: Final[dict[str, TypeAdapter[Any]]] = {
    **dict.fromkeys((*_BOOLEANS, "background"), TypeAdapter(bool)),
    **dict.fromkeys(_FLOATS, TypeAdapter(float)),
    **dict.fromkeys((*_INTEGERS, "max_output_tokens"), _INTEGER),
}
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_KINDS_OF: Final = {  # where the same name means something else
    RESPONSES: {name: kinds for name, kinds in _KINDS.items() if name != "prompt"}
    | {"input": frozenset(("string", "array")), "max_output_tokens": _NUMBER, "background": _BOOLEAN},
}
_PROMPTS: Final = {CHAT: ("messages",), MESSAGES: ("messages",), RESPONSES: ("input",)}
_COMPLETION_PROMPTS: Final = ("prompt", "prompt_embeds")


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as understood; what the client may not say has been removed."""

    endpoint: str  # one of `DATA_ROUTES`
    request_id: str
    headers: headers.RawHeaders  # as they came
    forwarded: bytes  # those for both legs, as lines
    fields: Fields
    model: str  # "": none is named, the node has one
    prompt: memoryview  # its JSON
    trace: Trace = UNTRACED
    names_tokens: str = ""  # how nodes name the answer's tokens to us: value of `TOKEN_IDS_HEADER`
    start: Start = ()  # the answer's tokens so far, with which a node starts

    @property
    def start_is_optional(self) -> bool:
        """Whether a node that starts with no tokens may answer: the client has nothing of the answer."""
        return self.names_tokens == AHEAD

    @property
    def prompt_bytes(self) -> int:
        """What routing takes for prompt work."""
        return len(self.prompt)


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """Read the request's body.

    Raises:
        BodyTooLargeError: it is, or says that it is, longer than `max_bytes`; asked before `100 Continue` is sent.
        ClientGoneError: the client left while sending.
    """
    declared = headers.find(scope["headers"], b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def discard_body(receive: Receive) -> None:
    """Read a body that the proxy does not need, for a while: a connection that is closed with unread data is reset.

    The client would then see the reset and not the answer.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while (await receive()).get("more_body", False):
                pass


def is_reset_unless_read(scope: Scope) -> bool:
    """Whether the connection is closed after the answer, by the client's wish, while it sends without being asked to."""
    if headers.find(scope["headers"], b"expect") is not None:
        return False
    said = headers.find(scope["headers"], b"connection") or b""
    return scope["http_version"] == "1.0" or b"close" in said.lower()


def parse(
    endpoint: str, request_id: str, raw_headers: headers.RawHeaders, body: bytes, trace: Trace = UNTRACED
) -> ClientRequest:
    """Understand a request; `BadRequestError`: it is no JSON object, or a field is missing or of the wrong type."""
    fields = _split(body.removeprefix(_UTF8_BOM))
    wanted = _KINDS_OF.get(endpoint, _KINDS)
    for name, value in fields.items():
        kinds = wanted.get(name)
        if kinds is not None and kind_of(value) not in kinds:
            fields[name] = _coerced(name, value, kinds)
        elif name in _INTEGERS and not bytes(value).isdigit():
            fields[name] = _as_integer(value)
    return ClientRequest(
        endpoint=endpoint,
        request_id=request_id,
        headers=raw_headers,
        forwarded=headers.to_forward(raw_headers, trace.line),
        fields=_without_connector_fields(fields),
        model=_decode_model(fields["model"]) if is_set(fields, "model") else "",
        prompt=_prompt(endpoint, fields),
        trace=trace,
    )


def _split(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return split(body)
    except msgspec.ValidationError as exc:
        raise BadRequestError("the request body must be a JSON object") from exc
    except DECODE_ERRORS as exc:
        raise BadRequestError(f"the request body is not valid JSON: {exc}") from exc


def _coerced(name: str, value: msgspec.Raw, kinds: frozenset[JsonKind]) -> msgspec.Raw:
    """Return a value of another kind of JSON as vLLM would read it, so that both legs and the proxy read the same."""
    if (lax := _LAX_TYPES.get(name)) is not None and kind_of(value) not in ("array", "object"):
        with suppress(ValidationError, ValueError):  # the latter: infinite, which JSON cannot say
            return msgspec.Raw(json.dumps(lax.validate_json(bytes(value)), allow_nan=False).encode())
    expected = " or ".join(sorted(kinds - {"null"}))
    raise BadRequestError(f"'{name}' must be of type {expected}, not {kind_of(value)}", param=name)


def _as_integer(value: msgspec.Raw) -> msgspec.Raw:
    """Return a number as vLLM reads it where it wants an integer: `2.0` is 2; a node refuses 2.5."""
    with suppress(ValidationError):
        return msgspec.Raw(b"%d" % _INTEGER.validate_json(bytes(value)))
    return value


def _decode_model(value: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(value, type=str)
    except DECODE_ERRORS as exc:
        raise BadRequestError("'model' is not a valid string", param="model") from exc


def _prompt(endpoint: str, fields: Fields) -> memoryview:
    """Return the JSON of the prompt, which has to be there."""
    names = _PROMPTS.get(endpoint, _COMPLETION_PROMPTS)
    for name in names:
        if is_set(fields, name):
            return memoryview(fields[name])
    raise BadRequestError(f"you must provide '{names[0]}'", param=names[0])


def _without_connector_fields(fields: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    kept = {name: value for name, value in fields.items() if name not in _CONNECTOR_FIELDS}
    if is_set(kept, _XARGS):
        extra = _split(bytes(kept[_XARGS]))
        if not _CONNECTOR_FIELDS.isdisjoint(extra):
            allowed = {name: value for name, value in extra.items() if name not in _CONNECTOR_FIELDS}
            kept[_XARGS] = msgspec.Raw(msgspec.json.encode(allowed))
    return kept


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the request body is larger than {max_bytes} bytes")
