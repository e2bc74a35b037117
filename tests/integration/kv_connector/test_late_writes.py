"""E1 and E2 against real Mooncake over TCP: bytes that land late never reach a block in use. E3: `test_engines.py`.

Both run twice each. A naive decode node gives a failed transfer's blocks back at once, and bytes of P then turn up
in another request's blocks: that shows that the harm is real. Ours gives them back after the fence, and none do.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.deploy.forkserver import ForkServer
from benchmarks.overlap.network import Network, NetworkError
from tests.support.late_writes.stage import Stage

pytestmark = pytest.mark.slow

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
