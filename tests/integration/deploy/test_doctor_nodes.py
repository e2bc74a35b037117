"""`baton doctor` before a deployment of fakes: what it makes of every kind of answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
import pytest

from baton.contracts.http import NODE_PATH, PROBE_PATH, TRANSFERS_PATH, error_body
from baton.contracts.kv_transfer import Role
from baton.contracts.probe import Pushed, Reached, Receiving, Released
from baton.contracts.secret import ClusterSecret
from baton.deploy.doctor import deployment as asking
from baton.deploy.doctor.deployment import READY, Targets, examine
from baton.deploy.doctor.fit import Wanted
from baton.deploy.doctor.report import Examination
from tests.support.ports import free_port
from tests.support.serve import serve
from tests.unit.deploy.doctor.known import info, machine

SECRET = ClusterSecret(b"the secret of this cluster")
WANTED = Wanted(min_mbit_s=1, max_latency_ms=1000)
WELL = Pushed(first_s=0.001, latency_s=0.001, bytes_per_s=1e9, after_idle_s=0.001)
SILENT: Final = (0, None)


class FakeNode:
    """Answers what it is told to, and notes what it is asked to try."""

    def __init__(self, role: Role) -> None:
        engines = {"current": ["10.0.0.2:15001"], "retired": []}
        self.answers: dict[str, tuple[int, Any]] = {  # by path, or by what is to be tried
            NODE_PATH: (200, info(role)),
            PROBE_PATH: (200, machine()),
            TRANSFERS_PATH: (200, {"worker": {"engines": engines} if role == "decode" else {}}),
            "dial": (200, Reached()),
            "greet": (200, Reached()),
            "receive": (200, Receiving(session="10.0.0.2:15009", address=4096, size_bytes=1 << 20)),
            "release": (200, Released(found=True)),
            "push": (200, WELL),
        }
        self.tried: list[dict[str, Any]] = []
        self.tokens: set[str] = set()
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.tokens.add(dict(scope["headers"]).get(b"authorization", b"").decode())
        question = scope["path"]
        if scope["method"] == "POST":
            self.tried.append(msgspec.json.decode((await receive())["body"]))
            question = self.tried[-1]["type"]
        status, body = self.answers.get(question, (404, {}))
        if not status:
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": content})

    def kinds(self) -> list[str]:
        return sorted(question["type"] for question in self.tried)


class Deployment:
    """A prefill node, a decode node, and a proxy that lists them."""

    def __init__(self) -> None:
        self.prefill, self.decode, self.proxy = FakeNode("prefill"), FakeNode("decode"), FakeNode("prefill")

    def list(self, status: int = 200, **changes: str) -> None:
        """Let the proxy list both as ready; `changes` are of the decode node."""
        nodes = [
            {"url": node.url, "role": role, "state": "ready", "reason": ""}
            for role, node in (("prefill", self.prefill), ("decode", self.decode))
        ]
        nodes[1] |= changes
        self.proxy.answers[READY] = (status, {"ready": True, "nodes": nodes})

    async def look(self) -> Examination:
        return await look(Targets(prefill=[self.prefill.url], decode=[self.decode.url]))


async def look(targets: Targets) -> Examination:
    async with asyncio.timeout(30):
        return await examine(targets, SECRET, WANTED, idle_s=0)


def codes(examination: Examination) -> list[str]:
    return sorted(finding.code for finding in examination.findings)


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    """Three servers on real sockets."""
    made = Deployment()
    async with AsyncExitStack() as stack:
        for node in (made.prefill, made.decode, made.proxy):
            node.url = await stack.enter_async_context(serve(node, lifespan="off"))
        made.list()
        yield made


async def test_a_pair_is_tried_by_its_nodes(deployment: Deployment) -> None:
    """D dials P's control port and puts up a receiver; P greets D's engines and pushes; the receiver is taken down."""
    found = await deployment.look()

    assert codes(found) == []
    assert deployment.decode.kinds() == ["dial", "receive", "release"]
    assert deployment.prefill.kinds() == ["greet", "push"]
    assert {"address": "tcp://10.0.0.1:9100", "type": "dial"} in deployment.decode.tried
    assert {"session": "10.0.0.2:15001", "type": "greet"} in deployment.prefill.tried
    assert deployment.prefill.tokens == {f"Bearer {SECRET.node_token()}"}
    assert [tried.push for tried in found.tried] == [WELL]


@pytest.mark.parametrize("status", [200, 503])
async def test_a_proxy_names_the_nodes(deployment: Deployment, status: int) -> None:
    """Ready or not, and is not shown the token: a URL is easily mistaken. Those that are named besides count once."""
    deployment.list(status)

    found = await look(Targets(proxy=deployment.proxy.url, decode=[deployment.decode.url]))

    assert codes(found) == []
    assert [node.url for node in found.nodes] == [deployment.prefill.url, deployment.decode.url]
    assert deployment.proxy.tokens == {""}


@pytest.mark.parametrize(
    ("state", "faults", "found"),
    [
        ("down", {}, ["proxy-sees-another"]),
        ("draining", {}, ["draining"]),
        ("silent", {}, ["silent"]),
        # What is wrong with its machine does not explain why the proxy avoids a node; its own refusal does.
        ("isolated", {PROBE_PATH: (404, {})}, ["no-probe", "proxy-sees-another"]),
        ("unready", {NODE_PATH: (401, {})}, ["cluster-secret"]),
    ],
)
async def test_a_node_that_the_proxy_does_not_use_is_told_once(
    deployment: Deployment, state: str, faults: dict[str, Any], found: list[str]
) -> None:
    """With the proxy's reason."""
    deployment.list(state=state, reason="so it is")
    deployment.decode.answers |= faults

    looked = await look(Targets(proxy=deployment.proxy.url))

    assert codes(looked) == found
    assert ("so it is" in looked.findings[-1].what) is (NODE_PATH not in faults)


async def test_an_address_without_a_server_is_told(deployment: Deployment) -> None:
    """Neither a proxy nor nodes, nor what is no URL; and a role without nodes: no prompt is handed over then."""
    closed = f"http://127.0.0.1:{free_port()}"

    assert codes(await look(Targets(proxy=closed))) == ["proxy-unreachable"]
    assert codes(await look(Targets(prefill=[closed], decode=["nonsense"]))) == ["node-unreachable"] * 2
    assert codes(await look(Targets(prefill=[deployment.prefill.url]))) == ["no-nodes"]


async def test_a_node_of_the_other_role_is_not_tried(deployment: Deployment) -> None:
    """A decode node cannot push."""
    found = await look(Targets(prefill=[deployment.decode.url], decode=[deployment.decode.url]))

    assert codes(found) == ["wrong-role"]
    assert deployment.decode.tried == []


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ({NODE_PATH: (401, {})}, "cluster-secret", "401"),
        ({NODE_PATH: (403, {})}, "cluster-secret", "403"),
        ({NODE_PATH: (404, {})}, "no-node", "404"),
        ({NODE_PATH: (200, b"<html>")}, "no-node", "something else"),
        ({PROBE_PATH: SILENT}, "node-unreachable", PROBE_PATH),  # it is not one of an older version
        ({PROBE_PATH: (404, {})}, "no-probe", "has no /baton/probe"),
        ({PROBE_PATH: (200, machine(open_files=1024))}, "open-files", "1024"),  # judged as this machine is
        ({"dial": (200, Reached(problem="nobody answers"))}, "control-unreachable", "nobody answers"),
        ({"push": (503, error_body("another probe is pushing"))}, "probe-failed", "another probe"),
        ({"push": (200, Pushed(problem="4096 B failed"))}, "data-unreachable", "4096 B"),
    ],
)
async def test_one_fault_is_one_finding(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], code: str, words: str
) -> None:
    """With what the node says. A receiver that was put up is taken down; that this fails says nothing of the push."""
    monkeypatch.setattr(asking, "TIMEOUT_S", 2.0)
    node = deployment.prefill if "push" in fault else deployment.decode
    node.answers |= fault
    deployment.decode.answers["release"] = (503, error_body("the node is stopping"))

    (finding,) = (await deployment.look()).findings

    assert finding.code == code
    assert words in finding.what
    kinds = deployment.decode.kinds()
    is_tried = code not in ("cluster-secret", "no-node", "node-unreachable", "no-probe")
    assert kinds.count("receive") == kinds.count("release") == is_tried
