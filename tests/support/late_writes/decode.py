"""D: a real worker and ledger over vLLM's block pool, and a scheduler that gives every block away as soon as it may.

A request's blocks go back to the pool the moment it has failed, as in vLLM. What really comes free with that is decided by
the ledger. Every block that does is given to a successor at once, who fills it; so does the recomputation of the request.
All of these are *in use*: a byte of P in one of them is astray.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm.v1.core.block_pool import BlockPool

from baton.kv_connector.engine.mooncake import MooncakeFactory, MooncakeReceiver
from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.metadata import DecodeStep, Reserved, Watched
from baton.kv_connector.layout.regions import Span
from baton.kv_connector.scheduler_side.ledger import ReservationLedger
from baton.kv_connector.worker_side.decode import DecodeWorker
from tests.support.late_writes.node import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    BLOCKS,
    PROMPT_BLOCKS,
    RECOMPUTED,
    SECRET,
    SENT,
    SUCCESSOR,
    Memory,
    config,
    introduction,
    no_digests,
)

LOOK_EVERY_S = 0.01


class Unregistered(MooncakeFactory):
    """Registers everything but the last block of the last layer: a write there fails, and the batch with it (E1)."""

    def receiver(self, spans: Sequence[Span]) -> MooncakeReceiver:
        *rest, (address, length) = sorted(spans)
        return super().receiver([*rest, (address, length - BLOCK_BYTES)])


class Decode:
    def __init__(self, folder: Path, host: str, peer: str, *, bad_block: bool, naive: bool) -> None:
        self._folder = folder
        self._naive = naive
        self._memory = Memory()
        self._pool = BlockPool(BLOCKS, enable_caching=False, hash_block_size=BLOCK_TOKENS)
        self._ledger = ReservationLedger()
        self._ledger.bind(self._pool)
        self._worker = DecodeWorker(
            config=config(folder, host),
            secret=SECRET,
            introduction=introduction("D", "decode", self._memory),
            engines=(Unregistered if bad_block else MooncakeFactory)(host=host),
            incarnation=22,
            record=lambda: None,
            digests=no_digests,
        )
        if naive:
            self._worker._engines.fence = lambda session: None  # type: ignore[method-assign]  # what is to be shown
        self._worker.start()
        every = self._pool.get_new_blocks(BLOCKS - 1)
        chosen = every[-1::-2] if bad_block else every[::2]  # apart from each other; the bad one is the last of all
        self._blocks = chosen[:PROMPT_BLOCKS]
        self._pool.free_blocks([block for block in every if block not in self._blocks])
        self._in_use: list[tuple[int, int]] = []  # block, what its owner wrote
        self._facts: dict[str, Any] = {"landed": 0, "failed": "", "closed": False, "after_failure": 0, "stray": 0}
        self._at_failure = 0
        self._reserve(peer)

    def run(self) -> int:
        """Go on until there is a file `stop`."""
        while not (self._folder / "stop").exists():
            self._worker.begin_step(DecodeStep())
            _, failed = self._worker.take_results()
            report = self._worker.take_report()
            if failed:
                self._recompute(report.failed["d-t"] if report else "")
            if report and report.closed:
                self._release()
            self._look()
            time.sleep(LOOK_EVERY_S)
        self._worker.stop()
        return 0

    def _reserve(self, peer: str) -> None:
        ids = [block.block_id for block in self._blocks]
        self._ledger.take("d-t", self._blocks)
        wish = BlockReservation(PROMPT_BLOCKS * BLOCK_TOKENS, 0, [ids], b"prompt")
        self._worker.begin_step(DecodeStep(watched=[Watched("t", "d-t", [peer])]))
        self._worker.begin_step(DecodeStep(reserved=[Reserved("d-t", 1, wish)]))

    def _recompute(self, reason: str) -> None:
        """The request failed: vLLM frees its blocks, and computes the prompt in others."""
        self._facts["failed"] = reason or "?"
        self._at_failure = self._facts["landed"]
        self._pool.free_blocks(self._blocks)
        if self._naive:
            self._release()
        else:
            self._occupy(RECOMPUTED, PROMPT_BLOCKS)

    def _release(self) -> None:
        self._facts["closed"] = True
        self._ledger.release("d-t")
        self._occupy(SUCCESSOR, self._pool.get_num_free_blocks())

    def _occupy(self, value: int, count: int) -> None:
        ids = [block.block_id for block in self._pool.get_new_blocks(count)]
        self._memory.fill(ids, value)
        self._in_use += [(block, value) for block in ids]

    def _look(self) -> None:
        used = [block for block, _ in self._in_use]
        reserved = [block.block_id for block in self._blocks if block.block_id not in used]
        self._facts["landed"] = self._memory.count(reserved, SENT) if reserved else self._facts["landed"]
        if self._facts["failed"]:
            self._facts["after_failure"] = max(self._facts["after_failure"], self._facts["landed"] - self._at_failure)
        self._facts["stray"] = self._memory.count(used, SENT)
        self._facts["fences"] = self._worker.snapshot()["totals"]["fences"]
        self._facts["looks"] = self._facts.get("looks", 0) + 1
        new = self._folder / "facts.new"
        new.write_text(json.dumps(self._facts))
        new.rename(self._folder / "facts")


def main(*, folder: str, host: str, peer: str, bad_block: bool, naive: bool) -> int:
    """Run until told to stop; `facts` in the folder says what has been seen."""
    return Decode(Path(folder), host, peer, bad_block=bad_block, naive=naive).run()
