"""`baton doctor` before a deployment of fakes: what it makes of every kind of answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from baton.contracts.http import NODE_PATH, PROBE_PATH, TRANSFERS_PATH, error_body
from baton.contracts.kv_transfer import Role
from baton.contracts.probe import Pushed, Reached, Receiving, Released
from baton.contracts.secret import ClusterSecret
from baton.deploy.doctor import asking
from baton.deploy.doctor.deployment import READY, Targets, examine
from baton.deploy.doctor.links import Wanted
from baton.deploy.doctor.report import Examination
from tests.support.ports import free_port
from tests.support.serve import serve
from tests.unit.deploy.doctor.known import info, machine

SECRET = ClusterSecret(b"the secret of this cluster")
WANTED = Wanted(min_mbit_s=1, max_latency_ms=1000)
WELL = Pushed(first_s=0.001, latency_s=0.001, bytes_per_s=1e9, after_idle_s=0.001)


class FakeNode:
    """Answers what it is told to, and notes what it is asked to try."""

    def __init__(self, role: Role) -> None:
        engines = {"current": ["10.0.0.2:15001"], "retired": []}
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {
            ("GET", NODE_PATH): (200, info(role)),
            ("GET", PROBE_PATH): (200, machine()),
            ("GET", TRANSFERS_PATH): (200, {"worker": {"engines": engines} if role == "decode" else {}}),
        }
        self.tries: dict[str, tuple[int, Any]] = {
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
        if scope["method"] == "POST":
            question = msgspec.json.decode((await receive())["body"])
            self.tried.append(question)
            status, body = self.tries[question["type"]]
        else:
            status, body = self.answers.get((scope["method"], scope["path"]), (404, {}))
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

    def list(self, **changes: str) -> None:
        """Let the proxy list both as ready; `changes` are of the decode node."""
        nodes = [
            {"url": node.url, "role": role, "state": "ready", "reason": ""}
            for role, node in (("prefill", self.prefill), ("decode", self.decode))
        ]
        nodes[1] |= changes
        self.proxy.answers["GET", READY] = (200, {"ready": True, "nodes": nodes})

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


def unused_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


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
    deployment.proxy.answers["GET", READY] = (status, deployment.proxy.answers["GET", READY][1])

    found = await look(Targets(proxy=deployment.proxy.url, decode=[deployment.decode.url]))

    assert codes(found) == []
    assert [node.url for node in found.nodes] == [deployment.prefill.url, deployment.decode.url]
    assert deployment.proxy.tokens == {""}


@pytest.mark.parametrize(
    ("state", "code"),
    [("down", "proxy-sees-another"), ("draining", "draining"), ("silent", "silent")],
)
async def test_a_node_that_only_the_proxy_does_not_use_is_told(deployment: Deployment, state: str, code: str) -> None:
    deployment.list(state=state, reason="so it is")

    (finding,) = (await look(Targets(proxy=deployment.proxy.url))).findings

    assert finding.code == code
    assert "so it is" in finding.what


async def test_what_is_wrong_with_its_machine_does_not_hide_that_the_proxy_avoids_a_node(
    deployment: Deployment,
) -> None:
    """Neither explains the other, and one of them is a warning only."""
    deployment.list(state="isolated", reason="its breaker is open")
    del deployment.decode.answers["GET", PROBE_PATH]

    assert codes(await look(Targets(proxy=deployment.proxy.url))) == ["no-probe", "proxy-sees-another"]


async def test_a_node_that_falls_silent_is_told(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as one of an older version, which is a warning: the pair was not tried."""
    monkeypatch.setattr(asking, "TIMEOUT_S", 2.0)
    deployment.decode.answers["GET", PROBE_PATH] = (0, None)  # no answer

    (finding,) = (await deployment.look()).findings

    assert (finding.code, finding.where) == ("node-unreachable", deployment.decode.url)
    assert PROBE_PATH in finding.what


async def test_what_is_wrong_with_a_node_is_told_once(deployment: Deployment) -> None:
    """Not again as the proxy's view."""
    deployment.list(state="unready", reason="another secret")
    deployment.decode.answers["GET", NODE_PATH] = (401, {})

    assert codes(await look(Targets(proxy=deployment.proxy.url))) == ["cluster-secret"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((401, {}), "cluster-secret"),
        ((403, {}), "cluster-secret"),
        ((404, {}), "no-node"),
        ((200, b"<html>"), "no-node"),
    ],
)
async def test_answers_that_are_no_description_are_told_apart(
    deployment: Deployment, answer: tuple[int, Any], code: str
) -> None:
    """And nothing is tried with such a node."""
    deployment.decode.answers["GET", NODE_PATH] = answer

    assert codes(await deployment.look()) == [code]
    assert deployment.decode.tried == []


async def test_an_address_without_a_server_is_told() -> None:
    """Neither a proxy nor nodes, nor what is no URL."""
    assert codes(await look(Targets(proxy=unused_url()))) == ["proxy-unreachable"]
    assert codes(await look(Targets(prefill=[unused_url()], decode=["nonsense"]))) == ["node-unreachable"] * 2


async def test_a_role_without_nodes_is_told(deployment: Deployment) -> None:
    """No prompt is handed over then."""
    assert codes(await look(Targets(prefill=[deployment.prefill.url]))) == ["no-nodes"]


async def test_a_push_that_failed_is_told_although_its_receiver_is_gone(deployment: Deployment) -> None:
    """That it could not be taken down says nothing of the push."""
    deployment.prefill.tries["push"] = (200, Pushed(problem="a push of 4096 B failed after 3.0 s"))
    deployment.decode.tries["release"] = (503, error_body("the node is stopping"))

    (finding,) = (await deployment.look()).findings

    assert finding.code == "data-unreachable"
    assert "4096 B" in finding.what


async def test_a_node_of_the_other_role_is_not_tried(deployment: Deployment) -> None:
    """A decode node cannot push."""
    found = await look(Targets(prefill=[deployment.decode.url], decode=[deployment.decode.url]))

    assert codes(found) == ["wrong-role"]
    assert deployment.decode.tried == []


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (("decode", "GET", 404, {}), "no-probe", "has no /baton/probe"),  # it has no such route
        (("decode", "GET", 200, machine(open_files=1024)), "open-files", "1024"),  # judged as this machine is
        (("decode", "dial", 200, Reached(problem="nobody answers")), "control-unreachable", "nobody answers"),
        (("prefill", "push", 503, error_body("another probe is pushing")), "probe-failed", "another probe"),
    ],
)
async def test_one_fault_is_one_finding(
    deployment: Deployment, fault: tuple[str, str, int, Any], code: str, words: str
) -> None:
    """With what the node says; the rest is judged, and the receiver is taken down all the same."""
    of, question, *_ = fault
    node: FakeNode = getattr(deployment, of)
    if question == "GET":
        node.answers["GET", PROBE_PATH] = fault[2:]
    else:
        node.tries[question] = fault[2:]

    (finding,) = (await deployment.look()).findings

    assert finding.code == code
    assert words in finding.what
    assert code == "no-probe" or "release" in deployment.decode.kinds()
