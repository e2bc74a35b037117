"""What vLLM refuses, and what a good request asks for. Pure."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from baton.loadtest.mock_engine.settings import MAX_MODEL_LEN_TOKENS, MODEL

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
_JSON: Final = "application/json"


class RefusedError(Exception):
    """Our own 4xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """One good request."""

    chat: bool
    stream: bool
    tokens: int
    prompt_tokens: int
    token_ids: bool
    usage: bool
    body: dict[str, Any]


def understand(path: str, content_type: str, data: bytes, default_tokens: int) -> Asked:
    """Read a request's body. Raises `RefusedError`: vLLM would refuse it, or it asks for what the mock has not."""
    if content_type.partition(";")[0].strip().lower() != _JSON:
        raise RefusedError(415, f"Unsupported Media Type: Only '{_JSON}' is allowed")
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise RefusedError(400, f"JSON decode error: {exc}") from exc
    if not isinstance(body, dict):
        raise RefusedError(400, "Input should be a valid dictionary")
    if body.get("model", MODEL) != MODEL:
        raise RefusedError(404, f"The model `{body['model']}` does not exist.")
    chat = path == CHAT
    prompt_tokens = _prompt_tokens(body, "messages" if chat else "prompt")
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options and not stream:
        raise RefusedError(400, "Stream options can only be defined when `stream=True`.")
    tokens = _tokens(body, default_tokens)
    if prompt_tokens + tokens > MAX_MODEL_LEN_TOKENS:
        raise RefusedError(400, f"This model's maximum context length is {MAX_MODEL_LEN_TOKENS} tokens.")
    _check_sampling(body)
    usage = isinstance(options, dict) and options.get("include_usage") is True
    return Asked(chat, stream, tokens, prompt_tokens, _flag(body, "return_token_ids"), usage, body)


def _prompt_tokens(body: dict[str, Any], name: str) -> int:
    prompt = body.get(name)
    if isinstance(prompt, str) and name == "prompt":
        return len(prompt) // 4 + 1
    if not isinstance(prompt, list) or not prompt:
        raise RefusedError(400, f"{name}: Field required")
    if name == "messages":
        if not all(isinstance(message, dict) and "role" in message for message in prompt):
            raise RefusedError(400, "messages: each needs a role")
        return sum(len(str(message.get("content", ""))) // 4 + 1 for message in prompt)
    if not all(type(token) is int and token >= 0 for token in prompt):
        raise RefusedError(400, "prompt: the mock takes one prompt, as text or token ids")
    return len(prompt)


def _tokens(body: dict[str, Any], default: int) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise RefusedError(400, f"{name} must be at least 1, got {value}.")
            return value
    return default


def _check_sampling(body: dict[str, Any]) -> None:
    if (n := body.get("n")) is not None and n != 1:
        raise RefusedError(400, f"n must be 1 here, got {n}.")
    temperature = body.get("temperature")
    if temperature is not None and (type(temperature) not in (int, float) or temperature < 0):
        raise RefusedError(400, f"temperature must be non-negative, got {temperature}.")


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise RefusedError(400, f"{name}: Input should be a valid boolean")
