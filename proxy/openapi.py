"""The data routes as `/docs` shows them. FastAPI does not serve them, so they are described here by hand."""

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException

from proxy.request import CHAT, COMPLETIONS

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
_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The answer; `text/event-stream` if `stream` is true"},
    400: {"description": "The request is malformed"},
    404: {"description": "No node serves the model"},
    429: {"description": "Too many requests of this tenant wait; `Retry-After` says when to come again"},
    502: {"description": "A node failed and no other could take over"},
    503: {"description": "No node is ready, or there is too much to do; `Retry-After` says when to come again"},
    504: {"description": "The request's deadline passed"},
}


def describe_data_routes(api: FastAPI) -> None:
    """Add the data routes to the document, and to the router, which answers 405 to what is not POST."""
    for path, field, schema in ((CHAT, "messages", _MESSAGES), (COMPLETIONS, "prompt", _PROMPT)):
        body = {
            "type": "object",
            "required": ["model", field],
            "properties": {**_COMMON, field: schema},
            "additionalProperties": True,
        }
        api.add_api_route(
            path,
            _served_elsewhere,
            methods=["POST"],
            responses=_ANSWERS,
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}},
            operation_id=path.removeprefix("/v1/").replace("/", "_"),
            description="As vLLM's OpenAI server; every field of its API is handed on.",
        )


async def _served_elsewhere(request: Request) -> None:
    """Stand in for `app.FrontDoor`, which never lets a POST through to here."""
    raise HTTPException(500, f"{request.url.path} is not served here")
