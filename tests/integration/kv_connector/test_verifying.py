"""`kv_verify` between a real prefill and a real decode worker, over either engine, with damage and delays.

What else happens to a transfer that is verified: tests/unit/kv_connector/handoff.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.handoff.metadata import PrefillStep
from tests.support.flipping import FlippingFactory
from tests.support.memory_engine import MemoryFabric
from tests.support.ranks import Memory, Ranks


class Gate:
    """Holds up the digests of one rank until the test lets them go."""

    def __init__(self, memory: Memory) -> None:
        self.asked, self._open = threading.Event(), threading.Event()
        self._real = memory.digests
        memory.digests = self.digests  # type: ignore[method-assign]  # the test's own memory

    def digests(self, blocks: Sequence[int], regions: Sequence[int]) -> bytes:
        self.asked.set()
        assert self._open.wait(10)
        return self._real(blocks, regions)

    def open(self) -> None:
        self._open.set()


def damaging(engine: str, flips: list[bool]) -> Callable[[MemoryFabric, str], Any]:
    """How the ranks get their engines: P's damages each push for which `flips` has a True left."""

    def make(fabric: MemoryFabric, host: str) -> Any:
        inner = fabric.factory(host) if engine == "memory" else MooncakeFactory(host="127.0.0.1")
        return FlippingFactory(inner, lambda: bool(flips) and flips.pop()) if host == "p" else inner

    return make


@pytest.mark.parametrize("engine", ["memory", "mooncake"])
def test_one_flipped_byte_is_caught(tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture) -> None:
    """D recomputes, counts and names the region; P counts and remembers; nothing is fenced; the next transfer is fine.

    Both log transfer, region and blocks, D's and P's.
    """
    with Ranks(tmp_path, kv_verify="full", engines=damaging(engine, [True])) as ranks:
        ranks.hand_over()
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert "layer." in ranks.failed["d-a"]
        assert ranks.failed["d-a"].endswith("in blocks 7, 3-4")
        assert not ranks.arrived({7: 1, 3: 2, 4: 5})
        assert ranks.finished == {"d-a"}
        totals = ranks.decode.snapshot()["totals"]
        assert (totals["mismatched"], totals["verified"], totals["loaded"], totals["fences"]) == (1, 0, 0, 0)
        ranks.wait_until(lambda: ranks.prefill.snapshot()["totals"]["mismatched"] == 1)
        assert ranks.prefill.snapshot()["failures"][-1]["reason"] == ranks.failed["d-a"]

        ranks.hand_over("b")
        ranks.wait_until(lambda: ranks.closed == ["d-a", "d-b"])
        assert "d-b" not in ranks.failed
        assert ranks.arrived({7: 1, 3: 2, 4: 5})
        assert ranks.decode.snapshot()["totals"]["verified"] == 1

    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    there, here = sorted(errors, key=lambda record: record.name)
    assert there.name.endswith("decode")
    assert here.name.endswith("prefill")
    for record in (there, here):
        assert "transfer a" in record.getMessage()
        assert "in blocks 7, 3-4" in record.getMessage()
    assert "from blocks [1, 2, 5]" in here.getMessage()


def test_an_abort_while_p_computes_the_digest_voids_the_epoch(tmp_path: Path) -> None:
    """I2: another request may have the blocks by now. D hears of it at once, not when the digest is done."""
    with Ranks(tmp_path, kv_verify="full") as ranks:
        gate = Gate(ranks.source)
        ranks.hand_over()
        assert gate.asked.wait(5)
        ranks.prefill.void(PrefillStep(voids=[("p-a", "aborted")]))

        ranks.wait_until(lambda: ranks.closed == ["d-a"])
        gate.open()

        assert ranks.failed == {"d-a": "aborted"}
        ranks.hand_over("b")
        ranks.wait_until(lambda: ranks.closed == ["d-a", "d-b"])
        assert "d-b" not in ranks.failed
        assert ranks.prefill.snapshot()["totals"]["committed"] == 1


def test_d_resumes_only_after_it_has_compared(tmp_path: Path) -> None:
    """Neither finished nor closed, so vLLM and the connector both keep the blocks; other transfers go on."""
    with Ranks(tmp_path, kv_verify="full") as ranks:
        gate = Gate(ranks.target)
        ranks.hand_over()
        assert gate.asked.wait(5)
        ranks.watch("b")
        ranks.wait_until(lambda: len(ranks.decode.snapshot()["transfers"]) == 2)
        assert (ranks.finished, ranks.closed) == (set(), [])
        assert ranks.decode.snapshot()["transfers"][0]["state"] == "verifying"

        gate.open()
        ranks.wait_until(lambda: ranks.closed == ["d-a"])

        assert ranks.failed == {}


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_digest_that_cannot_be_computed_is_no_proof(
    tmp_path: Path, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that fails costs a recomputation, and the thread lives on for the next transfer."""

    def fail(_: Sequence[int]) -> bytes:
        raise RuntimeError("out of memory")

    with Ranks(tmp_path, kv_verify="full") as ranks:
        with monkeypatch.context() as patch:
            patch.setattr(getattr(ranks, side), "digests", fail)
            ranks.hand_over()
            ranks.wait_until(lambda: ranks.closed == ["d-a"])
        assert ranks.failed == {"d-a": "the digests could not be computed"}
        assert ranks.prefill.snapshot()["totals"]["mismatched"] == 0

        ranks.hand_over("b")
        ranks.wait_until(lambda: ranks.closed == ["d-a", "d-b"])
        assert "d-b" not in ranks.failed
