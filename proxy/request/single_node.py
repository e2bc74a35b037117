"""Which requests of `/v1/responses` one decode node serves alone, and why. Pure; `eligibility.py` judges the other routes."""

from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.proxy.request.endpoints import RESPONSES
from baton.proxy.request.fields import Fields, is_on, is_set, kind_of
from baton.proxy.request.parse import ClientRequest

BACKGROUND: Final = "a background answer outlives its request"
TOOLS: Final = "built-in tools make further prompts on the node"
TRUNCATION: Final = "the prompt may be cut, depending on how long the answer may be"
PREVIOUS: Final = "the conversation so far is on this node"
_KEEPS_WHOLE: Final = b'"disabled"'
_CALLED_BY_CLIENT: Final = "function"


def reason_alone(request: ClientRequest) -> str | None:
    """Say why a request of this API cannot be disaggregated; None if it can, or is of another."""
    if request.endpoint != RESPONSES:
        return None
    fields = request.fields
    if previous_of(request) is not None:
        return PREVIOUS
    if is_on(fields, "background"):
        return BACKGROUND
    if is_set(fields, "truncation") and bytes(fields["truncation"]) != _KEEPS_WHOLE:
        return TRUNCATION
    return TOOLS if has_built_in_tools(fields) else None


def previous_of(request: ClientRequest) -> str | None:
    """Return the id of the answer that this request goes on from, if it names one."""
    if request.endpoint != RESPONSES or not is_set(request.fields, "previous_response_id"):
        return None
    found: str | None = _decoded(request.fields, "previous_response_id", str)
    return found


def wants_logprobs(request: ClientRequest) -> bool:
    found = _decoded(request.fields, "include", list) if is_set(request.fields, "include") else None
    return any(isinstance(name, str) and name.endswith("logprobs") for name in found or ())


def has_built_in_tools(fields: Fields) -> bool:
    """Whether a node may call tools itself."""
    if not is_set(fields, "tools") or kind_of(fields["tools"]) != "array":
        return False
    tools: Any = _decoded(fields, "tools", list)
    return any(not isinstance(tool, dict) or tool.get("type") != _CALLED_BY_CLIENT for tool in tools or ())


def _decoded(fields: Fields, name: str, kind: type) -> Any:
    """Return a field's value; None where it is no such thing, which the node will say."""
    try:
        return msgspec.json.decode(fields[name], type=kind)
    except DECODE_ERRORS:
        return None
