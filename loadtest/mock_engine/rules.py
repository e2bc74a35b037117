"""What a mock refuses: what vLLM does, and a hand-over that cannot work; and what it says of itself on the node API. No I/O.

A hand-over is asked for with signed parameters, as Baton's connector wants them, or with those of vLLM's connectors. A
real node would often compute the prompt itself instead, which a bench would take for disaggregated serving.
"""

import secrets
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import TOKEN_IDS_HEADER
from baton.contracts.kv_transfer import FIELD, KEY, Role, TransferParamsError, verify
from baton.contracts.node_info import RELAYS_AND_STARTS, Fingerprint, NodeInfo
from baton.contracts.secret import ClusterSecret
from baton.loadtest.mock_engine.settings import MAX_MODEL_LEN_TOKENS, MODEL

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
_JSON: Final = "application/json"
SGLANG_ROOM: Final = "bootstrap_room"
_NEVER_TO_A_NODE: Final = ("x-baton-", "x-data-parallel-rank")
_NOT_OF_A_PREFILL_LEG: Final = ("stream_options", "min_tokens", "logprobs", "top_logprobs", "echo", "best_of")
_NIXL_NEEDS: Final = ("remote_engine_id", "remote_block_ids", "remote_request_id", "remote_host", "remote_port")
_MOONCAKE_NEEDS: Final = ("remote_engine_id", "remote_bootstrap_addr")
FINGERPRINT: Final = Fingerprint(
    weights="mock",
    dtype="bfloat16",
    kv_cache_dtype="auto",
    quantization="none",
    rope="mock",
    attention="mock",
    block_size_tokens=16,
)


class RefusedError(Exception):
    """Our own 4xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is accepted."""

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
    except DECODE_ERRORS as exc:
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


def describe(role: Role, port: int) -> NodeInfo:
    return NodeInfo(
        role=role,
        state="ready",
        model=MODEL,
        served_models=[MODEL],
        max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
        incarnation=secrets.token_hex(16),
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        control_addresses=[f"tcp://127.0.0.1:{port}"] if role == "prefill" else [],
        fingerprint=FINGERPRINT,
        regions=[],
        num_blocks=0,
        layer_sync="event",
        versions={"baton": "mock"},
        first_tokens=f"{RELAYS_AND_STARTS}mock",
    )


class Baton:
    """A Baton node: what a good proxy must never send is refused."""

    def __init__(self, role: Role, secret: ClusterSecret) -> None:
        self._role = role
        self._secret = secret
        self._used: set[str] = set()

    def judge(self, asked: Asked, header_names: list[str]) -> bool:
        for name in header_names:
            if name.startswith(_NEVER_TO_A_NODE) and name != TOKEN_IDS_HEADER:
                raise RefusedError(400, f"header {name} must not reach a node")
        if self._role == "prefill":
            if not relays(asked) and (wrong := wrong_in_prefill_leg(asked.body)):
                raise RefusedError(400, f"a prefill leg must not be sent like this: {wrong}")
        elif FIELD not in asked.body:
            return False
        try:
            params = verify(asked.body.get(FIELD), self._secret)
        except TransferParamsError as exc:
            raise RefusedError(400, str(exc)) from exc
        if params.role != self._role or (self._role == "decode") != bool(params.peer or params.start):
            raise RefusedError(400, f"{FIELD} is for the other role")
        if params.transfer_id in self._used:
            raise RefusedError(400, "transfer id used twice")
        self._used.add(params.transfer_id)
        return True

    def told(self, asked: Asked, request_id: str) -> dict[str, Any] | None:  # noqa: ARG002
        """Say nothing: Baton's nodes talk to each other."""
        return None


def relays(asked: Asked) -> bool:
    params = asked.body.get(FIELD)
    fields = params.get(KEY) if isinstance(params, dict) else None
    return isinstance(fields, dict) and fields.get("relay") is True and asked.stream


class Vllm:
    """vLLM with NixlConnector, or MooncakeConnector (`transfer_id`); or SGLang (`bootstrap_room` in both legs)."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._engine_id = secrets.token_hex(16)

    def judge(self, asked: Asked, header_names: list[str]) -> bool:  # noqa: ARG002
        params = asked.body.get(FIELD)
        if params is None:
            return asked.body.get(SGLANG_ROOM) is not None
        if not isinstance(params, dict):
            raise RefusedError(400, f"{FIELD}: Input should be a valid dictionary")
        gives, takes = params.get("do_remote_decode") is True, params.get("do_remote_prefill") is True
        if (gives if self._role == "decode" else takes) or gives == takes:
            raise RefusedError(400, f"{FIELD} is for the other role, or for none")
        if takes:
            needs = _MOONCAKE_NEEDS if "transfer_id" in params else _NIXL_NEEDS
            missing = [name for name in needs if params.get(name) is None]
            if missing:
                raise RefusedError(400, f"{FIELD} lacks {', '.join(missing)}")
        return True

    def told(self, asked: Asked, request_id: str) -> dict[str, Any] | None:
        """Return what NixlConnector's `request_finished` does; MooncakeConnector's returns nothing."""
        params = asked.body.get(FIELD)
        if not isinstance(params, dict) or "transfer_id" in params:
            return None
        blocks = -(-asked.prompt_tokens // 16)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(1, blocks + 1))],
            "remote_engine_id": self._engine_id,
            "remote_request_id": request_id,
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        }


def wrong_in_prefill_leg(body: dict[str, Any]) -> list[str]:
    """Name the fields of a prefill leg that would make the node do more than compute the prompt."""
    wrong: list[str] = [name for name in _NOT_OF_A_PREFILL_LEG if name in body]
    if body.get("stream") is not False:
        wrong.append("stream")
    wrong += [name for name in ("max_tokens", "n") if body.get(name) != 1]
    if body.get("max_completion_tokens", 1) != 1:
        wrong.append("max_completion_tokens")
    return wrong
