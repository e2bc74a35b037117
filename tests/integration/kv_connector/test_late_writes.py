"""E1 to E3 against real Mooncake over TCP: bytes that land late never reach a block in use.

E1 and E2 run twice each. A naive decode node gives a failed transfer's blocks back at once, and bytes of P then turn up
in another request's blocks: that shows that the harm is real. Ours gives them back after the fence, and none do.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from baton.deploy.forkserver import ForkServer
from baton.kv_connector.engine.base import Push
from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.layout.copy_plan import Copy, CopyPlan
from baton.kv_connector.layout.regions import Span
from benchmarks.overlap.network import Network, NetworkError
from tests.support.late_writes.stage import Stage
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MIB = 1 << 20
SLOW_MBIT_S = 100  # 32 MiB take 2.7 s
NAIVE_OR_OURS = pytest.mark.parametrize(  # without our fences D's memory is overwritten: what the tests are worth
    "naive", [pytest.param(True, id="naive", marks=pytest.mark.exhaustive), pytest.param(False, id="ours")]
)


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two namespaces and a slow link."""
    try:
        with Network() as network:
            network.throttle(SLOW_MBIT_S)
            yield network
    except NetworkError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def forkserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    log = tmp_path_factory.mktemp("zygote") / "log"
    with ForkServer(prepare="tests.support.late_writes.stage:imports", log=log) as forkserver:
        yield forkserver


@pytest.fixture
def stage(forkserver: ForkServer, network: Network, tmp_path: Path) -> Iterator[Stage]:
    """Nothing has started yet."""
    stage = Stage(forkserver, network, tmp_path)
    yield stage
    stage.stop()
    stage.heal()


@NAIVE_OR_OURS
def test_e1_a_batch_that_has_failed_goes_on_landing(stage: Stage, naive: bool) -> None:
    """One bad destination fails the push at once; the other writes of it keep coming."""
    stage.start(naive=naive, bad_block=True)

    facts = stage.until(lambda facts: facts["closed"] and bool(facts["failed"]))
    assert facts["failed"] == "a push failed"
    facts = stage.watch(2.0)

    print(facts)
    check(facts, naive)


@NAIVE_OR_OURS
def test_e2_a_dead_sender_goes_on_sending(stage: Stage, naive: bool) -> None:
    """The link is cut, P killed, the link joined again: what its kernel had queued arrives from a dead process."""
    stage.start(naive=naive)
    stage.until(lambda facts: facts["landed"] > 4 * MIB)

    stage.cut()
    stage.kill_prefill()
    queued = stage.unsent_bytes()
    stage.until(lambda facts: facts["closed"])
    stage.heal()
    stage.wait(lambda: stage.unsent_bytes() == 0)
    facts = stage.watch(0.5)

    print(queued, facts)
    assert queued > 0
    check(facts, naive)


@NAIVE_OR_OURS
def test_e2_a_paused_sender_goes_on_writing(stage: Stage, naive: bool) -> None:
    """P is stopped in the middle of a push for longer than D waits, and continued."""
    stage.start(naive=naive)
    stage.until(lambda facts: facts["landed"] > 4 * MIB)

    stage.pause_prefill()
    stage.until(lambda facts: facts["closed"])
    stage.resume_prefill()
    facts = stage.watch(3.0)

    print(facts)
    check(facts, naive)


def check(facts: dict[str, int], naive: bool) -> None:
    """Bytes of P are astray exactly if D did not fence."""
    if naive:
        assert facts["fences"] == 0
        assert facts["stray"] > 0
    else:
        assert facts["fences"] == 1
        assert facts["stray"] == 0


HALF = 256 * MIB  # takes a fifth of a second


class Bench:
    """A sender, and receivers over one memory, in this process. The source is full of ones."""

    def __init__(self) -> None:
        self._factory = MooncakeFactory(host="127.0.0.1")
        self._source: npt.NDArray[np.uint8] = np.ones(HALF, np.uint8)
        self.target: npt.NDArray[np.uint8] = np.zeros(2 * HALF, np.uint8)
        self.receivers = [self._factory.receiver([self.span]) for _ in range(2)]
        self._sender = self._factory.sender([(self._source.ctypes.data, HALF)])
        for receiver in self.receivers:  # the first write to a peer asks it for its addresses
            copy = Copy(self._source.ctypes.data, self.span[0], 1)
            assert self.end(self._sender.submit(receiver.session, CopyPlan.of([copy])))

    @property
    def span(self) -> Span:
        return self.target.ctypes.data, 2 * HALF

    def push(self, receiver: int, half: int) -> Push:
        """Begin to fill one half through one receiver, in one write."""
        copy = Copy(self._source.ctypes.data, self.span[0] + half * HALF, HALF)
        return self._sender.submit(self.receivers[receiver].session, CopyPlan.of([copy]))

    def end(self, push: Push) -> bool:
        eventually(lambda: push.poll() is not None, every_s=0.0002)
        return bool(push.poll())

    def until_begun(self, half: int) -> None:
        """Wait until some of a half has landed."""
        eventually(lambda: self.target[half * HALF + MIB], every_s=0.0002)

    def close(self) -> None:
        self._factory.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Two fence domains over the same memory."""
    bench = Bench()
    yield bench
    bench.close()


def test_e3_unregistering_the_memory_does_not_fence(bench: Bench) -> None:
    """Mooncake says that the memory is gone, and goes on writing to it; only new writes are refused."""
    push = bench.push(0, half=0)
    bench.until_begun(0)

    assert bench.receivers[0]._engine.unregister_memory(bench.span[0]) == 0
    assert bench.target[HALF - 1] == 0

    bench.end(push)
    assert bench.target[HALF - 1] == 1
    assert bench.end(bench.push(0, half=1)) is False


def test_e3_destroying_the_engine_fences_its_own_domain_only(bench: Bench) -> None:
    """Nothing lands through it once close() has returned; the push through the other engine is none the wiser."""
    fenced, healthy = bench.push(0, half=0), bench.push(1, half=1)
    bench.until_begun(0)

    bench.receivers[0].close()
    assert bench.target[HALF - 1] == 0
    bench.target[:HALF] = 2

    assert bench.end(healthy) is True
    assert bench.end(fenced) is False
    time.sleep(0.5)
    assert np.array_equal(np.unique(bench.target[:HALF]), [2])
    assert np.array_equal(np.unique(bench.target[HALF:]), [1])
