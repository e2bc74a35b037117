"""What a probe means for what others have on a node."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.http import NODE_PATH
from baton.contracts.node_info import NodeLoad
from baton.contracts.secret import ClusterSecret
from baton.proxy.errors import FailureKind, UpstreamError
from baton.proxy.http.upstream import Upstream
from baton.proxy.nodes import health_probe
from baton.proxy.nodes.health_probe import HealthProbe, Prober
from baton.proxy.nodes.node import LONGEST_SILENCE_S, Node, State
from tests.support.cluster import until_true
from tests.unit.proxy.members import info


class BusyNode:
    def __init__(self, interval_s: float = 60.0) -> None:
        self.interval_s = interval_s
        self.probes = 0
        self.known = list[float]()  # of others at each probe

    async def probe(self, node: Node) -> None:
        self.probes += 1
        self.known.append(node.others.requests)
        node.describe(info("decode", load=NodeLoad(requests=5, prompt_bytes=50)))


async def test_what_was_heard_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where probes are rare, and until the next one; the node stays in use."""
    monkeypatch.setattr(health_probe, "STALE_S", 0.05)
    probed, prober = Node(url="http://n", role="decode"), BusyNode()
    watching = HealthProbe(probed, cast("Prober", prober), lambda _: None)
    watching.start()
    try:
        await until_true(lambda: probed.others.requests == 5)
        await until_true(lambda: probed.others.requests == 0)
        assert (prober.probes, probed.load, probed.state) == (1, 0, "ready")
        watching.wake()
        await until_true(lambda: probed.others.requests == 5)
    finally:
        await watching.stop()

    assert prober.probes == 2


async def test_what_was_heard_lately_is_known_until_the_next_probe() -> None:
    prober, restarted = BusyNode(0.001), Mock()
    watching = HealthProbe(Node(url="http://n", role="decode"), cast("Prober", prober), restarted)
    watching.start()
    try:
        await until_true(lambda: prober.probes >= 3)
    finally:
        await watching.stop()

    assert prober.known[:3] == [0, 5, 5]
    assert not restarted.called


async def test_a_node_on_whose_answer_the_proxy_fails_is_not_used_and_is_probed_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A fault of ours is logged once, and costs no more than it must."""
    probed, failing = Node(url="http://n", role="decode"), BusyNode(0.001)
    works, failing.probe = failing.probe, AsyncMock(side_effect=KeyError("a fault"))  # type: ignore[method-assign]
    watching = HealthProbe(probed, cast("Prober", failing), lambda _: None)
    watching.start()
    try:
        await until_true(lambda: cast("Mock", failing.probe).call_count >= 3)
        assert (probed.state, "KeyError" in probed.reason) == (State.UNREADY, True)
        failing.probe = works  # type: ignore[method-assign]
        await until_true(lambda: probed.state == State.READY)
    finally:
        await watching.stop()

    assert [record.levelname for record in caplog.records].count("ERROR") == 1


@pytest.mark.parametrize(("before", "after"), [((3, 10), (1, 20)), ((1, 20), (3, 10))])
def test_what_comes_or_goes_during_a_probe_is_ours(before: tuple[int, int], after: tuple[int, int]) -> None:
    """The node may or may not have counted it."""
    own = health_probe._most(*(NodeLoad(requests=each[0], prompt_bytes=each[1]) for each in (before, after)))

    assert own == NodeLoad(requests=3, prompt_bytes=20)


def unheard(kind: FailureKind) -> Mock:
    return Mock(get=Mock(side_effect=UpstreamError(kind, "no answer")))


@pytest.mark.parametrize(
    ("before", "kind", "probes", "after"),
    [
        (State.READY, FailureKind.TIMEOUT, 2, State.SILENT),
        (State.SILENT, FailureKind.TIMEOUT, 1, State.SILENT),
        (State.UNREADY, FailureKind.TIMEOUT, 1, State.DOWN),
        (State.DOWN, FailureKind.TIMEOUT, 1, State.DOWN),
        (State.READY, FailureKind.CONNECT, 1, State.DOWN),
        (State.SILENT, FailureKind.DISCONNECT, 1, State.DOWN),
        (State.READY, FailureKind.OWN, 1, State.READY),
    ],
)
async def test_silence_is_no_failure_and_a_refusal_is(
    before: State, kind: FailureKind, probes: int, after: State
) -> None:
    """A node that was of use stays so while nothing says that its process is gone."""
    probed, upstream = Node(url="http://n", role="decode"), unheard(kind)
    probed.lose(before, "")

    await prober(upstream).probe(probed)

    assert (probed.state, upstream.get.call_count) == (after, probes)


SOMETHING_ELSE = "GET /baton/node answered something else than a description"


class Answers:
    """A node that answers its health and its description so."""

    def __init__(self, health: int, status: int, body: bytes) -> None:
        self.of = {"/health": (health, b""), NODE_PATH: (status, body)}

    @asynccontextmanager
    async def get(self, _url: str, path: str, *_: bytes, timeout_s: float) -> AsyncIterator[Mock]:
        assert timeout_s == ProxyConfig().probe_timeout_s
        status, body = self.of[path]
        yield Mock(status=status, read_all=AsyncMock(return_value=body))


@pytest.mark.parametrize(
    ("health", "status", "body", "state", "reason"),
    [
        (200, 200, msgspec.json.encode(info("decode")), State.READY, ""),
        (503, 200, msgspec.json.encode(info("decode")), State.DOWN, "GET /health answered 503"),
        (200, 401, b"", State.UNREADY, "GET /baton/node answered 401: it holds another cluster secret"),
        (200, 403, b"", State.UNREADY, "GET /baton/node answered 403: it holds another cluster secret"),
        (200, 404, b"", State.UNREADY, "GET /baton/node answered 404: it is no Baton node"),
        (200, 200, b"{}", State.UNREADY, SOMETHING_ELSE),
        (200, 200, b'{"role": "decode", "model": "\xff"}', State.UNREADY, SOMETHING_ELSE),
        (200, 200, b'{"new": ' + b"[" * 100_000, State.UNREADY, SOMETHING_ELSE),
    ],
)
async def test_what_an_answer_to_a_probe_says_of_its_node(
    health: int, status: int, body: bytes, state: State, reason: str
) -> None:
    probed = Node(url="http://n", role="decode")

    await prober(Answers(health, status, body)).probe(probed)

    assert (probed.state, probed.reason.partition(": ")[0] if reason == SOMETHING_ELSE else probed.reason) == (
        state,
        reason,
    )


async def test_a_node_that_cannot_be_heard_of_is_down_in_the_end() -> None:
    """Nothing can be known of its process; the silence of its engine alone, however long, does not count."""
    now_s = [0.0]
    probed = Node(url="http://n", role="decode", clock=lambda: now_s[0])
    probed.describe(info("decode", state="silent"))
    begun_s = 2 * LONGEST_SILENCE_S
    states = []
    for after_s in (0.0, LONGEST_SILENCE_S - 1, LONGEST_SILENCE_S, LONGEST_SILENCE_S + 1):
        now_s[0] = begun_s + after_s
        await prober(unheard(FailureKind.TIMEOUT)).probe(probed)
        states.append(probed.state)
    probed.describe(info("decode", state="silent"))

    assert states == [State.SILENT, State.SILENT, State.DOWN, State.DOWN]
    assert (probed.state, probed.silent_s, probed.unheard_s) == (State.SILENT, 0.0, 0.0)


def prober(upstream: object) -> Prober:
    return Prober(ProxyConfig(), ClusterSecret(b"a secret for tests only"), cast("Upstream", upstream))
