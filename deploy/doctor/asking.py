"""Asks proxies and nodes over HTTP, with the cluster's token; whatever goes wrong is one kind of error with a reason."""

from enum import StrEnum
from typing import Any, Final, TypeVar

import httpx
import msgspec

from baton.contracts.http import NODE_PATH, PROBE_PATH, TRANSFERS_PATH
from baton.contracts.node_info import NodeInfo
from baton.contracts.probe import ANSWERS, Machine, Push, Question
from baton.contracts.secret import ClusterSecret

TIMEOUT_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 30.0  # of whatever the node tries, but for a push
PUSH_TIMEOUT_S: Final = 90.0  # besides its pause
_T = TypeVar("_T")


class Unlike(StrEnum):
    """How an answer differs from that of a healthy node."""

    SILENT = "silent"  # there is none
    SECRET = "secret"  # noqa: S105  # it refuses our token
    OTHER = "other"  # it is another's


class AskError(Exception):
    """No usable answer; the message says why."""

    def __init__(self, message: str, unlike: Unlike = Unlike.OTHER) -> None:
        super().__init__(message)
        self.unlike = unlike


class _Engines(msgspec.Struct):
    current: list[str] = []


class _Worker(msgspec.Struct):
    engines: _Engines | None = None


class _Transfers(msgspec.Struct):
    worker: _Worker


class ProbeClient:
    """Makes the requests."""

    def __init__(self, http: httpx.AsyncClient, secret: ClusterSecret) -> None:
        self._http = http
        self._secret = secret

    async def get(self, url: str, kind: type[_T], statuses: tuple[int, ...] = (200,), *, is_open: bool = False) -> _T:
        answer = await self._send("GET", url, TIMEOUT_S, is_open=is_open)
        if answer.status_code not in statuses:
            raise AskError(f"it answered {answer.status_code}")
        return _decode(answer, kind)

    async def info(self, url: str) -> NodeInfo:
        answer = await self._send("GET", url + NODE_PATH, TIMEOUT_S)
        if answer.status_code in (401, 403):
            raise AskError(f"it refuses the token of this cluster secret ({answer.status_code})", Unlike.SECRET)
        if answer.status_code != 200:
            raise AskError(f"GET {NODE_PATH} answered {answer.status_code}")
        return _decode(answer, NodeInfo)

    async def machine(self, url: str) -> Machine | None:
        """Return what a node says of its machine; None if it has no such route. Raises `AskError`: it is silent."""
        try:
            return await self.get(url + PROBE_PATH, Machine)
        except AskError as exc:
            if exc.unlike is Unlike.SILENT:
                raise AskError(f"GET {PROBE_PATH}: {exc}", Unlike.SILENT) from exc
            return None

    async def engines(self, url: str) -> list[str]:
        try:
            engines = (await self.get(url + TRANSFERS_PATH, _Transfers)).worker.engines
        except AskError:
            return []
        return engines.current if engines else []

    async def ask(self, url: str, question: Question) -> Any:
        timeout_s = PUSH_TIMEOUT_S + question.idle_s if isinstance(question, Push) else PROBE_TIMEOUT_S
        answer = await self._send("POST", url + PROBE_PATH, timeout_s, msgspec.json.encode(question))
        if answer.status_code != 200:
            raise AskError(f"{url} did not try it: {_reason(answer)}")
        kind: Any = ANSWERS[type(question)]
        return _decode(answer, kind)

    async def _send(
        self, method: str, url: str, timeout_s: float, body: bytes | None = None, *, is_open: bool = False
    ) -> httpx.Response:
        headers = {} if is_open else {"authorization": f"Bearer {self._secret.node_token()}"}
        try:
            return await self._http.request(method, url, headers=headers, content=body, timeout=timeout_s)
        except httpx.TimeoutException as exc:
            raise AskError("it does not answer in time", Unlike.SILENT) from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise AskError(f"it cannot be asked: {exc}", Unlike.SILENT) from exc


def _decode(answer: httpx.Response, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except msgspec.DecodeError as exc:
        raise AskError(f"it answered something else: {exc}") from exc


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"status {answer.status_code}"
