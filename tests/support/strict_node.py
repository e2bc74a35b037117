"""What a fake node refuses of a proxy.

Unsigned or reused `kv_transfer_params`, internal headers, a prefill leg that streams or asks for more than one token.
"""

from dataclasses import dataclass
from typing import Any, Literal

from baton.contracts.http import TOKEN_IDS_HEADER
from baton.contracts.kv_transfer import FIELD, TransferParams, TransferParamsError, verify
from baton.contracts.node_info import NodeInfo
from baton.contracts.secret import ClusterSecret
from baton.loadtest.mock_engine.rules import wrong_in_prefill_leg
from tests.support.fake_typed import MESSAGES, RESPONSES


@dataclass(slots=True, eq=False)
class Seen:
    """One request as the node saw it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    params: TransferParams | None = None
    cancelled: bool = False
    finished: bool = False


class RefusedError(Exception):
    """Our own 4xx."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StrictNode:
    """Looks at each request before it is answered."""

    def __init__(self, role: Literal["prefill", "decode"], secret: ClusterSecret, info: NodeInfo) -> None:
        self.role = role
        self.info = info
        self.needs_params = True  # on a prefill node
        self.refuses_starts = False
        self._secret = secret
        self._used: set[str] = set()

    def _check(self, seen: Seen) -> None:
        """Refuse what the proxy must never send, and what vLLM refuses."""
        for name in seen.headers:
            if (name.startswith("x-baton-") and name != TOKEN_IDS_HEADER) or (
                name == "x-data-parallel-rank" and self.info.data_parallel_size == 1
            ):
                raise RefusedError(400, f"header {name} must not reach a node")
        if seen.headers.get("content-type") != "application/json":
            raise RefusedError(415, "content type")
        if seen.body.get("model") not in self.info.served_models:
            raise RefusedError(404, "model")
        if not {"prompt", "prompt_embeds", "messages", "input"} & seen.body.keys():
            raise RefusedError(400, "no prompt")
        if seen.body.get("max_tokens") == 0:
            raise RefusedError(400, "max_tokens must be at least 1")
        if seen.body.get("stream_options") and not seen.body.get("stream"):
            raise RefusedError(400, "stream_options without stream")
        self._check_params(seen)
        is_prefill_leg = seen.params is not None and seen.params.role == "prefill"
        if is_prefill_leg and (wrong := _wrong_in_prefill_leg(seen)):
            raise RefusedError(400, f"a prefill leg must not be sent like this: {wrong}")

    def _check_params(self, seen: Seen) -> None:
        if FIELD not in seen.body:
            if self.role == "prefill" and self.needs_params:
                raise RefusedError(400, f"a prefill leg needs {FIELD}")
            return
        try:
            seen.params = verify(seen.body[FIELD], self._secret)
        except TransferParamsError as exc:
            raise RefusedError(400, str(exc)) from exc
        if self.refuses_starts and seen.params.start:
            raise RefusedError(400, "it starts with no tokens")
        params = seen.params
        if params.role != self.role and not self.info.both_ways:
            raise RefusedError(400, f"{FIELD} is for the other role")
        if (params.role == "decode") != bool(params.peer) and not params.start:
            raise RefusedError(400, f"{FIELD} names no peer, or one too many")
        if params.start_sent and not (params.role == "decode" and params.peer and params.start and self.info.both_ways):
            raise RefusedError(400, f"{FIELD} says that KV of tokens comes which cannot")
        if seen.params.transfer_id in self._used:
            raise RefusedError(400, "transfer id used twice")
        self._used.add(seen.params.transfer_id)


def _wrong_in_prefill_leg(seen: Seen) -> list[str]:
    body = dict(seen.body)
    if seen.params is not None and seen.params.relays:
        return [name for name in ("stream",) if body.get(name) is not True]
    if seen.path == RESPONSES:
        if body.pop("store", True) or "max_tokens" in body:
            return ["store", "max_tokens"]
        body["max_tokens"] = body.pop("max_output_tokens", None)
    if seen.path in (MESSAGES, RESPONSES):
        if "n" in body or body.get("temperature") != 0:
            return ["n", "temperature"]
        body["n"] = 1
    return wrong_in_prefill_leg(body)
