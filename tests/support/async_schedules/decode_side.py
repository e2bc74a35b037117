"""A decode node's scheduler, which reserves at any time, and the reader that looks at every block it was promised."""

import random
from dataclasses import dataclass, field
from enum import IntEnum

from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.metadata import DecodeStep, Reserved, Watched
from baton.kv_connector.worker_side.decode import DecodeWorker
from tests.support.async_schedules.traffic import Computed, content
from tests.support.async_schedules.wire import ADDRESS
from tests.support.ranks import BLOCK_TOKENS, BLOCKS, LAYERS, Memory


class Stage(IntEnum):
    UNKNOWN = 0
    WATCHED = 1
    RESERVED = 2
    LOADED = 3
    FAILED = 4


@dataclass(slots=True, eq=False)
class Wanted:
    prompt: Computed
    first_block: int = 0  # D has those before it
    blocks: list[int] = field(default_factory=list)
    stage: Stage = Stage.UNKNOWN
    reason: str = ""
    cancelled: bool = False
    closed: bool = False


class DecodeSide:
    """D's scheduler. Its blocks come back only when the worker has closed them, and are reused at once."""

    def __init__(self, chance: random.Random, worker: DecodeWorker, memory: Memory, prompts: list[Computed]) -> None:
        self.wanted = {f"d-{prompt.name}": Wanted(prompt) for prompt in prompts}
        self.problem = ""
        self.reserved = 0
        self._random = chance
        self._worker = worker
        self._memory = memory
        self._free = list(range(1, BLOCKS))

    def act(self) -> None:
        """Go on with one prompt, and take in what the worker has to say."""
        self._poll()
        name, wanted = self._random.choice(list(self.wanted.items()))
        if wanted.stage is Stage.UNKNOWN:
            wanted.stage = Stage.WATCHED
            self._worker.begin_step(DecodeStep(watched=[Watched(wanted.prompt.name, name, [ADDRESS])]))
        elif wanted.stage is Stage.WATCHED:
            self._reserve(name, wanted)
        elif wanted.stage is Stage.RESERVED and self._random.random() < 0.004:
            wanted.cancelled = True
            self._worker.begin_step(DecodeStep(cancelled=[name]))
        elif wanted.stage is Stage.LOADED and wanted.closed and wanted.blocks:
            self._give_back(wanted)

    def check(self) -> str:
        """Look once more at everything that has been loaded and not been given back."""
        for wanted in self.wanted.values():
            if wanted.stage is Stage.LOADED and wanted.blocks:
                self._compare(wanted)
        return self.problem

    def unfinished(self) -> list[str]:
        """Prompts that should have arrived and have not."""
        return [
            f"{name}: {wanted.stage.name} {wanted.reason}"
            for name, wanted in self.wanted.items()
            if wanted.stage is not Stage.LOADED and not wanted.prompt.voided and not wanted.cancelled
        ]

    def _reserve(self, name: str, wanted: Wanted) -> None:
        total = len(wanted.prompt.texts)
        first = self._random.randrange(total) if self._random.random() < 0.3 else 0
        if total - first > len(self._free):
            return
        self.reserved += 1
        wanted.first_block = first
        wanted.blocks = [self._free.pop(self._random.randrange(len(self._free))) for _ in range(total - first)]
        wanted.stage = Stage.RESERVED
        for layer in range(LAYERS):
            for block in wanted.blocks:
                self._memory.write(layer, block, "what was here before")
        about = f"prompt {wanted.prompt.name}".encode()
        wish = BlockReservation(wanted.prompt.tokens, first * BLOCK_TOKENS, [wanted.blocks], about)
        self._worker.begin_step(DecodeStep(reserved=[Reserved(name, 1, wish)]))

    def _poll(self) -> None:
        finished, failed = self._worker.take_results()
        for name in finished:
            wanted = self.wanted[name]
            wanted.stage = Stage.FAILED if name in failed else Stage.LOADED
            if wanted.stage is Stage.LOADED:
                self._compare(wanted)
        if report := self._worker.take_report():
            for name, reason in report.failed.items():
                self.wanted[name].stage, self.wanted[name].reason = Stage.FAILED, reason
            for name in report.closed:
                self.wanted[name].closed = True
                if self.wanted[name].stage is Stage.FAILED:
                    self._give_back(self.wanted[name])

    def _give_back(self, wanted: Wanted) -> None:
        self._free += wanted.blocks
        wanted.blocks = []

    def _compare(self, wanted: Wanted) -> None:
        """What D counts as committed is what P's kernels wrote for this prompt in the end."""
        for layer in range(LAYERS):
            for index, mine in enumerate(wanted.blocks, wanted.first_block):
                expected = content(wanted.prompt.texts[index], layer, 0, wanted.prompt.length(index))
                found = self._memory.read(layer, mine)[: len(expected)]
                if found != expected:
                    self.problem = self.problem or (
                        f"{wanted.prompt.name} layer {layer} block {index}: found {_brief(found)} for {_brief(expected)}"
                    )


def _brief(kv: bytes) -> str:
    return " | ".join(sorted({kv[i : i + 16].rstrip(b".\0").decode(errors="replace") for i in range(0, len(kv), 16)}))
