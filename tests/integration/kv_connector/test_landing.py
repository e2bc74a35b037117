"""What a receiving engine has acknowledged may not be on D's device yet: D waits before it reads, or gives blocks back."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from baton.kv_connector.control.wake import Waker
from baton.kv_connector.handoff.metadata import DecodeStep
from tests.support.fake_device import FakeDevice, Run, Stream
from tests.support.memory_engine import MemoryFabric
from tests.support.ranks import BLOCK_TOKENS, LAYERS, Ranks

TOKENS = 2 * BLOCK_TOKENS


class StagedFabric(MemoryFabric):
    """Acknowledges a write when its bytes are in a staging buffer; the copy to the device is still to run, on a stream."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def _land(self, write: Any) -> None:  # type: ignore[override]  # of each fabric its own
        write.leave_sender()
        self._stream.launch(write.land)
        write.push.left -= 1


def ranks_on(folder: Path, stream: Stream, **transfer: Any) -> Ranks:
    """P and D, whose engine writes by `stream` of D's device."""
    fabric = StagedFabric(stream)
    made = Ranks(
        folder,
        engines=lambda _, host: fabric.factory(host),
        decode_device=stream,
        **transfer,
    )
    made.fabric = fabric
    return made


def hand_over(ranks: Ranks, name: str = "a") -> None:
    """One prompt, from P's blocks 1 and 2 to D's 7 and 3."""
    ranks.ask(name, TOKENS, [7, 3])
    ranks.compute(name, tokens=TOKENS, blocks=[1, 2], ready=2)


def has_waited(device: FakeDevice, ranks: Ranks, times: int = 1) -> bool:
    """Whether D's worker has begun to wait for the device, and what it has said so far is taken in."""
    ranks.poll()
    return device.waits.total() >= times


@pytest.fixture
def late() -> Iterator[FakeDevice]:
    """D's device; a copy runs when the test says so."""
    with FakeDevice(1, Run.ON_ADVANCE) as device:
        yield device


def test_d_reads_what_was_acknowledged_when_the_device_has_it(
    tmp_path: Path, late: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, I3: after COMMIT neither the request goes on nor do its blocks come back before the last copy has run; that wakes the engine."""
    words: list[str] = []
    monkeypatch.setattr(Waker, "wake", lambda _: words.append("wake"))
    with ranks_on(tmp_path, late.stream()) as ranks:
        hand_over(ranks)
        ranks.wait_until(lambda: ranks.prefill.snapshot()["totals"]["committed"] == 1 and has_waited(late, ranks))
        late.advance(LAYERS)  # of 2 copies in each layer
        ranks.poll()
        assert (ranks.finished, ranks.closed) == (set(), [])

        words.clear()
        late.advance(10 * LAYERS)
        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        assert words
        assert ranks.finished == {"d-a"}
        assert not ranks.failed
        assert ranks.arrived({7: 1, 3: 2})


def test_digests_are_computed_when_the_device_has_what_arrived(tmp_path: Path, late: FakeDevice) -> None:
    """Computed earlier, they are those of what lay there before, and a good transfer counts as damaged."""
    with ranks_on(tmp_path, late.stream(), kv_verify="full") as ranks:
        hand_over(ranks)
        ranks.wait_until(lambda: has_waited(late, ranks))
        assert ranks.decode.snapshot()["open_transfers"] == 1
        ranks.wait_until(lambda: late.advance(LAYERS) >= 0 and ranks.closed == ["d-a"])

        totals = ranks.decode.snapshot()["totals"]
        assert (totals["verified"], totals["mismatched"]) == (1, 0)


def test_blocks_come_back_when_the_device_has_what_came_before_the_fence(tmp_path: Path, late: FakeDevice) -> None:
    """I3: a fence ends what the engine takes in, not what it has handed to the device."""
    stream = late.stream()
    with ranks_on(tmp_path, stream, quarantine_max_s=0.0) as ranks:
        ranks.fabric.fail_next()
        stream.launch(lambda: ranks.target.write(0, 7, "a piece of the push that failed"))
        hand_over(ranks)
        ranks.wait_until(lambda: "d-a" in ranks.finished)  # recomputes at once, in other blocks
        ranks.wait_until(lambda: ranks.decode.snapshot()["totals"]["fences"] == 1 and has_waited(late, ranks))
        assert ranks.closed == []

        late.advance(10 * LAYERS)
        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        assert list(ranks.failed) == ["d-a"]


def test_a_device_that_fails_resolves_the_request_once_and_keeps_its_blocks(tmp_path: Path, late: FakeDevice) -> None:
    """What was acknowledged may still be queued: the KV is not used, and no request gets the blocks."""
    with ranks_on(tmp_path, late.stream()) as ranks:
        hand_over(ranks)
        ranks.wait_until(lambda: has_waited(late, ranks))
        late.lose()
        ranks.wait_until(lambda: "d-a" in ranks.finished)
        ranks.decode.begin_step(DecodeStep(cancelled=["d-a"]))  # as the scheduler answers to a failure

        assert "device failed" in ranks.failed["d-a"]
        assert ranks.closed == []
        assert ranks.decode.take_results() == (set(), set())


def test_a_device_that_hangs_costs_a_recomputation_and_its_blocks_until_it_goes_on(
    tmp_path: Path, late: FakeDevice
) -> None:
    """The control thread gives up, since the one that waits for the device does not come back."""
    with ranks_on(tmp_path, late.stream()) as ranks:
        hand_over(ranks)
        ranks.wait_until(lambda: has_waited(late, ranks))
        landing = ranks.decode._landing
        assert landing is not None
        patience_s, landing._patience_s = landing._patience_s, 0.0
        ranks.wait_until(lambda: "d-a" in ranks.finished)
        landing._patience_s = patience_s

        assert "device failed" in ranks.failed["d-a"]
        assert ranks.closed == []
        ranks.wait_until(lambda: late.advance(LAYERS) >= 0 and ranks.closed == ["d-a"])


def test_a_request_that_leaves_while_the_device_is_waited_for_is_reported_once(
    tmp_path: Path, late: FakeDevice
) -> None:
    """An aborted request keeps its blocks in vLLM until that hears that the receive has ended."""
    with ranks_on(tmp_path, late.stream()) as ranks:
        hand_over(ranks)
        ranks.wait_until(lambda: ranks.prefill.snapshot()["totals"]["committed"] == 1 and has_waited(late, ranks))
        ranks.decode.begin_step(DecodeStep(cancelled=["d-a"]))
        late.advance(10 * LAYERS)
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.finished == {"d-a"}
        assert ranks.decode.take_results() == (set(), set())
        assert ranks.closed == ["d-a"]


def test_stopping_while_the_device_is_waited_for_says_nothing_more(tmp_path: Path, late: FakeDevice) -> None:
    """Nothing hangs, and nothing is reported by a worker that has stopped."""
    with ranks_on(tmp_path, late.stream()) as ranks:
        hand_over(ranks)
        ranks.wait_until(lambda: has_waited(late, ranks))
        late.lose()  # or the stop would wait for it, for its few seconds


def test_prompt_after_prompt_in_the_same_blocks(tmp_path: Path) -> None:
    """Real threads and a device that is late: each prompt is there when D hears of it."""
    with FakeDevice(2) as device, ranks_on(tmp_path, device.stream()) as ranks:
        for name in "abcdefgh":
            hand_over(ranks, name)
            ranks.wait_until(partial(lambda request: request in ranks.finished, f"d-{name}"))

            for block, source in ((7, 1), (3, 2)):
                assert ranks.target.read(LAYERS - 1, block).startswith(
                    f"{name} layer {LAYERS - 1} block {source}".encode()
                )
            ranks.wait_until(partial(lambda request: request in ranks.closed, f"d-{name}"))
        assert not ranks.failed
