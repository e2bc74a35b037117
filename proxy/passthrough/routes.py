"""The routes that are passed to a node, by name. Pure.

A list, and not "whatever a node has": vLLM serves many a route that is its operator's alone (sleep, profiles, weights).
"""

import re
from dataclasses import dataclass
from typing import Final

from baton.proxy.request.endpoints import COUNT_TOKENS, RESPONSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route that one node serves whole."""

    method: str
    template: str  # as nodes name it
    response_id: str = ""  # of the stored response that it is about


_POSTED: Final = (
    COUNT_TOKENS,
    "/tokenize",
    "/detokenize",
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/generative_scoring",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/render",
    "/v1/responses/render",
    "/inference/v1/generate",
)
_RETRIEVE: Final = f"{RESPONSES}/{{response_id}}"
_CANCEL: Final = f"{RESPONSES}/{{response_id}}/cancel"
_STORED: Final = re.compile(re.escape(RESPONSES) + r"/([^/]+)(/cancel)?")
_FIXED: Final = {("POST", path): Route(method="POST", template=path) for path in _POSTED} | {
    ("GET", "/tokenizer_info"): Route(method="GET", template="/tokenizer_info")
}
ROUTES: Final = (
    *_FIXED.values(),
    Route(method="GET", template=_RETRIEVE),
    Route(method="POST", template=_CANCEL),
)


def route_of(method: str, path: str) -> Route | None:
    """Return the route that a request is for; None if it is none of these."""
    if (fixed := _FIXED.get((method, path))) is not None:
        return fixed
    if (found := _STORED.fullmatch(path)) and method == ("POST" if found[2] else "GET"):
        return Route(method=method, template=_CANCEL if found[2] else _RETRIEVE, response_id=found[1])
    return None
