"""What vLLM's calls come to on the sides that a rank has."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.contracts.kv_transfer import Role
from baton.kv_connector.handoff.metadata import DecodeStep, PrefillStep, Step
from baton.kv_connector.worker_side.sides import WorkerSides

PREFILL, DECODE = PrefillStep(), DecodeStep()
OUTPUT: Any = object()


class Side:
    """One side, which notes what it is asked."""

    address = "tcp://p:1"

    def __init__(self, name: str, log: list[tuple[Any, ...]]) -> None:
        self._name, self._log = name, log

    def __getattr__(self, method: str) -> Any:
        def ask(*args: Any) -> Any:
            self._log.append((self._name, method, *args))
            known = {
                "cancel": 2,
                "take_released": {"sent"},
                "take_results": ({"received"}, {"failed"}),
                "take_report": "a report",
                "timeline": {"flows": [1]},
                "snapshot": {"side": self._name, "refused": {}},
            }
            return known.get(method)

        return ask


class Rig:
    def __init__(self, role: Role, names: tuple[str, ...], *, pushes_layers: bool = True) -> None:
        self.log: list[tuple[Any, ...]] = []
        made: dict[str, Any] = {name: Side(name, self.log) for name in names}
        self.sides = WorkerSides(
            role,
            made.get("prefill"),
            made.get("decode"),
            pushes_layers=pushes_layers,
            rank=3,
            described={"num_blocks": 5},
        )

    def model_thread(self) -> list[tuple[Any, ...]]:
        """Everything that vLLM calls in a step."""
        step, sides = Step(PREFILL, DECODE), self.sides
        sides.void(step)
        sides.begin_step(step)
        sides.attention_begins("layer.0")
        sides.kv_issued("layer.0")
        sides.finish_forward()
        sides.end_step()
        sides.tokens_sampled(OUTPUT)
        return self.log


ON_PREFILL = [
    ("prefill", "void", PREFILL),
    ("prefill", "begin_step", PREFILL),
    ("prefill", "attention_begins", "layer.0"),
    ("prefill", "kv_issued", "layer.0"),
    ("prefill", "finish_forward"),
    ("prefill", "end_step"),
    ("prefill", "tokens_sampled", OUTPUT),
]
ON_DECODE = [("decode", "begin_step", DECODE)]


@pytest.mark.parametrize(
    ("names", "pushes_layers", "calls"),
    [
        (("prefill",), True, ON_PREFILL),
        (("prefill",), False, [*ON_PREFILL[:2], *ON_PREFILL[4:]]),  # the layers' hooks say nothing
        (("decode",), True, ON_DECODE),
        (("prefill", "decode"), True, [*ON_PREFILL[:2], *ON_DECODE, *ON_PREFILL[2:]]),
        ((), True, []),
    ],
)
def test_each_hook_reaches_the_side_that_it_concerns(
    names: tuple[str, ...], pushes_layers: bool, calls: list[Any]
) -> None:
    """A side that is not there is not asked."""
    assert Rig("prefill", names, pushes_layers=pushes_layers).model_thread() == calls


def test_a_step_that_says_nothing_to_a_side_does_not_reach_it() -> None:
    """The scheduler of an engine with both sides may have news for one of them alone."""
    rig = Rig("prefill", ("prefill", "decode"))

    rig.sides.void(Step(None, None))
    rig.sides.begin_step(Step(None, None))

    assert rig.log == []


@pytest.mark.parametrize(("role", "order"), [("prefill", ["prefill", "decode"]), ("decode", ["decode", "prefill"])])
def test_the_nodes_own_side_comes_first(role: Role, order: list[str]) -> None:
    """In what is started and stopped, and in a snapshot, where the other is what it does in reverse."""
    rig = Rig(role, ("prefill", "decode"))

    rig.sides.start()
    rig.sides.stop()

    assert rig.log == [(name, call) for call in ("start", "stop") for name in order]
    assert rig.sides.snapshot() == {
        "num_blocks": 5,
        "side": order[0],
        "refused": {},
        "reverse": {"side": order[1]},
    }


def test_both_sides_answer_together() -> None:
    """The node API and vLLM know one worker."""
    sides = Rig("prefill", ("prefill", "decode")).sides

    assert (sides.rank, sides.address) == (3, "tcp://p:1")
    assert sides.cancel(["t"]) == 4
    assert sides.timeline("t") == {"flows": [1]}
    assert sides.take_report() == "a report"
    assert ended(sides) == ({"sent"}, {"received"}, {"failed"})


@pytest.mark.parametrize(
    ("names", "address", "timeline", "report", "results"),
    [
        (("prefill",), "tcp://p:1", [1], None, ({"sent"}, set(), set())),
        (("decode",), "", [], "a report", (set(), {"received"}, {"failed"})),
    ],
)
def test_one_side_answers_for_itself(
    names: tuple[str, ...], address: str, timeline: list[int], report: Any, results: Any
) -> None:
    """For the other there is nothing to tell."""
    sides = Rig("prefill", names).sides

    assert (sides.rank, sides.address, sides.cancel(["t"])) == (3, address, 2)
    assert (sides.timeline("t"), sides.take_report(), ended(sides)) == ({"flows": timeline}, report, results)
    assert sides.snapshot() == {"num_blocks": 5, "side": names[0], "refused": {}}


def ended(sides: WorkerSides) -> tuple[set[str], ...]:
    found: SimpleNamespace = sides.take_results()
    return found.finished_sending, found.finished_recving, found.failed_recving
