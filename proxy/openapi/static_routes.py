"""The routes that FastAPI does not serve, as the document shows them while no node has described them better."""

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException

from baton.proxy.passthrough.routes import ROUTES
from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES, RESPONSES

_COMMON: Final[dict[str, Any]] = {
    "model": {"type": "string"},
    "stream": {"type": "boolean", "default": False},
    "max_tokens": {"type": "integer"},
    "temperature": {"type": "number"},
}
_PROMPT: Final[dict[str, Any]] = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}
_MESSAGES: Final[dict[str, Any]] = {"type": "array", "items": {"type": "object"}}
_INPUT: Final[dict[str, Any]] = {"oneOf": [{"type": "string"}, _MESSAGES]}
_PROMPTS: Final = {
    CHAT: ("messages", _MESSAGES),
    COMPLETIONS: ("prompt", _PROMPT),
    RESPONSES: ("input", _INPUT),
    MESSAGES: ("messages", _MESSAGES),
}
_ANY: Final = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The answer; `text/event-stream` if `stream` is true"},
    400: {"description": "The request is malformed"},
    401: {"description": "The proxy asks for API keys, and this is none"},
    404: {"description": "No node serves the model, or this route"},
    413: {"description": "The body is too large"},
    429: {
        "description": "Too many requests of this tenant wait, or its API key asks for too much; `Retry-After` says when to come again"
    },
    502: {"description": "A node failed and no other could take over"},
    503: {"description": "No node is ready, or there is too much to do; `Retry-After` says when to come again"},
    504: {"description": "The request's deadline passed"},
}


def describe_data_routes(api: FastAPI) -> None:
    """Add the routes to the document, and to the router, which answers 405 to other methods."""
    for path, (field, schema) in _PROMPTS.items():
        body = {
            "type": "object",
            "required": [field],
            "properties": {**_COMMON, field: schema},
            "additionalProperties": True,
        }
        extra = {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
        _add(api, "POST", path, extra, "As vLLM's server; every field of its API is handed on.")
    for route in ROUTES:
        has_body = route.method == "POST" and "{" not in route.template
        _add(api, route.method, route.template, _ANY if has_body else {}, "Passed to a node that has this route.")


def _add(api: FastAPI, method: str, path: str, extra: dict[str, Any], description: str) -> None:
    api.add_api_route(
        path,
        _served_elsewhere,
        methods=[method],
        responses=ANSWERS,
        openapi_extra=extra,
        operation_id=f"{method.lower()}_{path.strip('/').replace('/', '_').replace('{', '').replace('}', '')}",
        description=description,
    )


async def _served_elsewhere(request: Request) -> None:
    """Stand in for `app.FrontDoor`, which lets no request that is served elsewhere through to here."""
    raise HTTPException(404, f"{request.url.path} is not served here")
