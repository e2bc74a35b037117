"""Looks at a running deployment: asks the proxy who is there, each node what it is, and pairs of nodes for a transfer.

All are asked over HTTP, with the cluster's token; whatever goes wrong is one kind of error with a reason.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
import msgspec

from baton.contracts import probe
from baton.contracts.decoding import DECODE_ERRORS
from baton.contracts.http import NODE_PATH, PROBE_PATH, TRANSFERS_PATH
from baton.contracts.kv_transfer import Role
from baton.contracts.node_info import NodeInfo
from baton.contracts.probe import Push, Pushed, Question, Reached, Receiving
from baton.contracts.secret import ClusterSecret
from baton.deploy.doctor import fit
from baton.deploy.doctor.catalogue import Finding
from baton.deploy.doctor.fit import Known, Tried, Wanted, control_addresses
from baton.deploy.doctor.report import Examination

TIMEOUT_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 30.0  # of whatever the node tries, but for a push
PUSH_TIMEOUT_S: Final = 90.0  # besides its pause
RECEIVE_S: Final = 120.0  # likewise, of a trial
READY: Final = "/ready"
UNREACHABLE: Final = "node-unreachable"
# What keeps the proxy from using a node, seen from here.
UNUSED: Final = (UNREACHABLE, "cluster-secret", "no-node", "wrong-role", "not-ready", "draining")
ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
_T = TypeVar("_T")


class AskError(Exception):
    """No usable answer; the message says why, and `code` what is found of a node that gives it."""

    def __init__(self, message: str, code: str = "no-node") -> None:
        super().__init__(message)
        self.code = code


class _Engines(msgspec.Struct):
    current: list[str] = []


class _Worker(msgspec.Struct):
    engines: _Engines | None = None


class _Transfers(msgspec.Struct):
    worker: _Worker


class ProbeClient:
    """Asks proxy and nodes over HTTP."""

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
            raise AskError(f"it refuses the token of this cluster secret ({answer.status_code})", "cluster-secret")
        if answer.status_code != 200:
            raise AskError(f"GET {NODE_PATH} answered {answer.status_code}")
        return _decode(answer, NodeInfo)

    async def machine(self, url: str) -> probe.Machine | None:
        """Return what a node says of its machine; None if it has no such route. Raises `AskError`: it is silent."""
        try:
            return await self.get(url + PROBE_PATH, probe.Machine)
        except AskError as exc:
            if exc.code == UNREACHABLE:
                raise AskError(f"GET {PROBE_PATH}: {exc}", UNREACHABLE) from exc
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
        kind: Any = probe.ANSWERS[type(question)]
        return _decode(answer, kind)

    async def _send(
        self, method: str, url: str, timeout_s: float, body: bytes | None = None, *, is_open: bool = False
    ) -> httpx.Response:
        headers = {} if is_open else {"authorization": f"Bearer {self._secret.node_token()}"}
        try:
            return await self._http.request(method, url, headers=headers, content=body, timeout=timeout_s)
        except httpx.TimeoutException as exc:
            raise AskError("it does not answer in time", UNREACHABLE) from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise AskError(f"it cannot be asked: {exc}", UNREACHABLE) from exc


def _decode(answer: httpx.Response, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except DECODE_ERRORS as exc:
        raise AskError(f"it answered something else: {exc}") from exc


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"status {answer.status_code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """URLs of the proxy and the nodes to examine."""

    proxy: str = ""
    prefill: Sequence[str] = ()
    decode: Sequence[str] = ()


class _Listed(msgspec.Struct):
    """A node as the proxy's `/ready` lists it."""

    url: str
    role: Role
    state: str
    reason: str


class _Ready(msgspec.Struct):
    nodes: list[_Listed]


async def examine(
    targets: Targets, secret: ClusterSecret, wanted: Wanted, idle_s: float, *, verify: Any = True
) -> Examination:
    async with httpx.AsyncClient(trust_env=False, verify=verify) as http:
        client = ProbeClient(http, secret)
        findings, listed = await _listed(client, targets)
        seen = await asyncio.gather(*(_look(client, each.url, each.role) for each in listed))
        nodes = [node for node, _ in seen]
        for node, problems in seen:
            findings += [*problems, *_diagnose(node)]
        findings += _disagreements(listed, findings)
        findings += fit.diagnose_versions(nodes)
        tried = await _tried(client, nodes, findings, idle_s)
        findings += fit.diagnose_links(tried, wanted)
    return Examination(findings=findings, nodes=nodes, tried=tried)


async def _listed(client: ProbeClient, targets: Targets) -> tuple[list[Finding], list[_Listed]]:
    findings: list[Finding] = []
    listed: list[_Listed] = []
    if targets.proxy:
        try:
            listed += (await client.get(targets.proxy + READY, _Ready, statuses=(200, 503), is_open=True)).nodes
        except AskError as exc:
            findings.append(Finding(code="proxy-unreachable", where=targets.proxy, what=str(exc)))
    for role in ROLES:
        urls = targets.prefill if role == "prefill" else targets.decode
        known = {each.url for each in listed if each.role == role}
        listed += [_Listed(url, role, "", "") for url in dict.fromkeys(urls) if url not in known]
    for role in ROLES:
        if not findings and not any(each.role == role for each in listed):
            where = targets.proxy or "this deployment"
            findings.append(Finding(code="no-nodes", where=where, what=f"there is no {role} node"))
    return findings, listed


async def _look(client: ProbeClient, url: str, role: Role) -> tuple[Known, list[Finding]]:
    try:
        info = await client.info(url)
        found, engines = await asyncio.gather(client.machine(url), client.engines(url))
    except AskError as exc:
        return Known(url=url, role=role), [Finding(code=exc.code, where=url, what=str(exc))]
    return Known(url=url, role=role, info=info, machine=found, engines=engines), []


def _diagnose(node: Known) -> list[Finding]:
    findings = list(fit.diagnose_node(node))
    if node.info is not None and node.machine is not None:
        findings += fit.diagnose_machine(node.machine, node.url, fit.kv_bytes(node.info) or None)
    return findings


def _disagreements(listed: Sequence[_Listed], findings: Sequence[Finding]) -> list[Finding]:
    """Nodes that are well as seen from here, and not as the proxy sees them."""
    told = {finding.where for finding in findings if finding.code in (*UNUSED, "silent")}
    return [
        Finding(
            code=each.state if each.state in ("draining", "silent") else "proxy-sees-another",
            where=each.url,
            what=f"the proxy has it as {each.state}: {each.reason}",
        )
        for each in listed
        if each.state not in ("", "ready") and each.url not in told
    ]


async def _tried(client: ProbeClient, nodes: Sequence[Known], findings: list[Finding], idle_s: float) -> list[Tried]:
    """Judge every pair, and try those that could reach each other."""
    usable: dict[str, list[Known]] = {
        role: [node for node in nodes if node.role == role and node.usable] for role in ROLES
    }
    all_tried: list[Tried] = []
    for turn in fit.rounds(usable["prefill"], usable["decode"]):
        trials: list[Any] = []
        for prefill, decode in turn:
            found = list(fit.diagnose_pair(prefill, decode))
            findings += found
            if not any(finding.code == "loopback-advertised" for finding in found):
                trials.append(_try_pair(client, prefill, decode, idle_s))
        all_tried += await asyncio.gather(*trials)
    return all_tried


async def _try_pair(client: ProbeClient, prefill: Known, decode: Known, idle_s: float) -> Tried:
    assert prefill.info is not None  # it is usable
    dials = [probe.Dial(address=address) for address in control_addresses(prefill.info)]
    greetings = [probe.Greet(session=session) for session in decode.engines]
    control, data = await asyncio.gather(
        _first_problem(client, decode, dials), _first_problem(client, prefill, greetings)
    )
    try:
        push = await _push(client, prefill, decode, idle_s)
        problem = ""
    except AskError as exc:
        push, problem = None, str(exc)
    return Tried(prefill=prefill, decode=decode, control=control, data=data, push=push, problem=problem, idle_s=idle_s)


async def _first_problem(client: ProbeClient, node: Known, questions: Sequence[Question]) -> Reached | None:
    """Whether everything is reached; the first that is not, if something is not. None if it could not be asked."""
    try:
        answers: list[Reached] = await asyncio.gather(*(client.ask(node.url, each) for each in questions))
    except AskError:
        return None  # which the push says too
    return next((answer for answer in answers if answer.problem), Reached())


async def _push(client: ProbeClient, prefill: Known, decode: Known, idle_s: float) -> Pushed:
    target: Receiving = await client.ask(decode.url, probe.Receive(seconds=RECEIVE_S + idle_s))
    try:
        order = Push(session=target.session, address=target.address, size_bytes=target.size_bytes, idle_s=idle_s)
        pushed: Pushed = await client.ask(prefill.url, order)
        return pushed
    finally:
        with suppress(AskError):  # it ends by itself, and says nothing of the push
            await client.ask(decode.url, probe.Release(session=target.session))
