from collections.abc import Sequence

import pytest

from benchmarks.overlap.figures import Cell, Kv, Measured, Sample
from benchmarks.overlap.session import MeasureError, Session, measure_cell, prompts
from benchmarks.usage import OtherCpu

CELL = Cell(200, 16, 512)


class Recorder:
    """A subject that notes what it was asked; some turns fail."""

    def __init__(self, name: str, log: list[str], failing: Sequence[int] = ()) -> None:
        self.name, self.log, self.failing = name, log, failing
        self.prompts: list[tuple[int, ...]] = []

    async def measure(self, prompt: Sequence[int]) -> Sample:
        self.log.append(self.name)
        self.prompts.append(tuple(prompt))
        if len(self.prompts) in self.failing:
            raise MeasureError("answered 500 without a token")
        return Sample(seconds=float(len(self.prompts)))


class Meter(OtherCpu):
    """Says what it was told to, one value per question, then nothing is running."""

    def __init__(self, *cores: float) -> None:
        self.cores = list(cores)

    def restart(self) -> None:
        pass

    def other_cores(self) -> float:
        return self.cores.pop(0) if self.cores else 0.0


async def measured(subjects: dict[str, Recorder], meter: Meter) -> Measured:
    """Measure one cell: two rounds, and at most two more."""
    session = Session(draw=prompts(1), meter=meter, samples=2, extra_rounds=2, max_other_cores=0.1)
    return await measure_cell(CELL, Kv(8, 16, 1), subjects, session)


async def test_subjects_alternate_and_each_round_begins_with_another() -> None:
    """Drifts then hit all alike; the first round only warms up; no prompt comes twice, lest stale KV pass for a fresh transfer."""
    log: list[str] = []
    subjects = {name: Recorder(name, log) for name in "abc"}

    found = await measured(subjects, Meter())

    assert "".join(log) == "abcbcacab"
    assert [sample.seconds for sample in found.samples["a"]] == [2.0, 3.0]
    drawn = [prompt for subject in subjects.values() for prompt in subject.prompts]
    assert len(set(drawn)) == len(drawn) == 9
    assert {len(prompt) for prompt in drawn} == {CELL.tokens}


async def test_a_round_in_which_others_used_the_cpu_is_taken_again() -> None:
    """Its samples do not count while quiet ones can be had."""
    found = await measured({"a": Recorder("a", [])}, Meter(0.9, 0.0, 0.02))

    assert [sample.seconds for sample in found.samples["a"]] == [3.0, 4.0]
    assert found.noisy_rounds == 0
    assert found.other_cores == pytest.approx(0.01)


async def test_without_enough_quiet_rounds_the_quietest_noisy_ones_count_and_are_told() -> None:
    """The extra rounds are bounded, so a busy machine ends the cell too."""
    found = await measured({"a": Recorder("a", [])}, Meter(0.9, 0.5, 0.0, 0.7))

    assert [sample.seconds for sample in found.samples["a"]] == [4.0, 3.0]
    assert found.noisy_rounds == 1
    assert found.other_cores == pytest.approx(0.25)


async def test_a_failed_round_is_dropped_whole_and_told() -> None:
    """A pair of samples of different rounds would not be interleaved. Where every round fails there is nothing to report."""
    found = await measured({"a": Recorder("a", [], failing=[2]), "b": Recorder("b", [])}, Meter())

    assert [len(samples) for samples in found.samples.values()] == [2, 2]
    assert found.failures == (f"a, {CELL}: answered 500 without a token",)
    with pytest.raises(MeasureError, match="answered 500"):
        await measured({"a": Recorder("a", [], failing=range(100))}, Meter())
