"""What a probe means for what others have on a node."""

from typing import cast

import pytest

from contracts.node_info import NodeLoad
from proxy import watch
from proxy.node import Node
from proxy.watch import Prober, Watch
from tests.support.cluster import until_true
from tests.unit.proxy.members import info


class BusyNode:
    """Answers every probe with five requests."""

    interval_s = 60.0

    def __init__(self) -> None:
        self.probes = 0

    async def probe(self, node: Node) -> None:
        self.probes += 1
        node.describe(info("decode", load=NodeLoad(requests=5, prompt_bytes=50)))


async def test_what_was_heard_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where probes are rare, and until the next one; the node stays in use."""
    monkeypatch.setattr(watch, "STALE_S", 0.05)
    probed, prober = Node(url="http://n", role="decode"), BusyNode()
    watching = Watch(probed, cast("Prober", prober), lambda _: None)
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


@pytest.mark.parametrize(("before", "after"), [((3, 10), (1, 20)), ((1, 20), (3, 10))])
def test_what_comes_or_goes_during_a_probe_is_ours(before: tuple[int, int], after: tuple[int, int]) -> None:
    """The node may or may not have counted it."""
    own = watch._most(*(NodeLoad(requests=each[0], prompt_bytes=each[1]) for each in (before, after)))

    assert own == NodeLoad(requests=3, prompt_bytes=20)
