"""The workers of a node's ranks, as its scheduler and vLLM's engine see them: told the same, and heard when all have spoken."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce

from baton.kv_connector.handoff.metadata import DecodeReport, DecodeStep
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.prefill import PrefillWorker


class PrefillRanks:
    """Stands for one `PrefillWorker`; `between` runs between two ranks, since they are processes of their own."""

    def __init__(self, workers: Sequence[PrefillWorker], between: Callable[[], None]) -> None:
        self._workers = workers
        self._between = between
        self._released: Counter[str] = Counter()

    def __getattr__(self, hook: str) -> Callable[..., None]:
        def call(*given: object) -> None:
            for number, worker in enumerate(self._workers):
                if number:
                    self._between()
                getattr(worker, hook)(*given)

        return call

    def take_released(self) -> set[str]:
        for worker in self._workers:
            self._released.update(worker.take_released())
        return _said_by_all(self._released, len(self._workers))


class DecodeRanks:
    """Stands for one `DecodeWorker`.

    Source:
        `KVOutputAggregator` of vLLM.
    """

    def __init__(self, workers: Sequence[DecodeWorker]) -> None:
        self._workers = workers
        self._finished: Counter[str] = Counter()
        self._failed: set[str] = set()

    def begin_step(self, step: DecodeStep) -> None:
        for worker in self._workers:
            worker.begin_step(step)

    def take_results(self) -> tuple[set[str], set[str]]:
        for worker in self._workers:
            finished, failed = worker.take_results()
            self._finished.update(finished)
            self._failed |= failed
        by_all = _said_by_all(self._finished, len(self._workers))
        failed = self._failed & by_all
        self._failed -= failed
        return by_all, failed

    def take_report(self) -> DecodeReport | None:
        reports = [report for worker in self._workers if (report := worker.take_report())]
        return reduce(DecodeReport.aggregate, reports) if reports else None


def _said_by_all(said: Counter[str], ranks: int) -> set[str]:
    """Return which requests all ranks have named, and forget them."""
    names = {name for name, times in said.items() if times == ranks}
    for name in names:
        del said[name]
    return names
