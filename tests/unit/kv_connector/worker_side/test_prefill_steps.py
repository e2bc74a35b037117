"""How a prefill rank takes a step of the scheduler, and what it says of it: its parts are replaced."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.handoff.metadata import Abandoned, PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.protocol.messages import SampledToken, Started
from baton.kv_connector.worker_side.prefill import NOT_FETCHED
from tests.unit.kv_connector.worker_side.parts import PROMPT, Pair, commit, fail

PROGRESS = [Progress("p-a", [[1], [2, 3]], 1), Progress("p-b", [], 1)]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    return Pair(tmp_path, monkeypatch)


def sampled(*tokens: int, request: str = "p-a") -> Any:
    """A step's output."""
    return SimpleNamespace(req_id_to_index={request: 0}, sampled_token_ids=[list(tokens)], logprobs=None)


def start_and_sample(pair: Pair, logprobs: int | None = 0) -> None:
    """D has reserved, and P starts a prompt whose first token it is to sample."""
    pair.meet()
    pair.reserve("a", 16, [7])
    pair.carry()
    started = StartedPrompt("a", "p-a", PROMPT, logprobs=logprobs)
    pair.prefill.begin_step(PrefillStep(started=[started], progress=[Progress("p-a", [[1]], 1)]))
    pair.carry()


def test_a_step_tells_its_parts_what_it_pushes(pair: Pair) -> None:
    """So many layers at once as its new blocks are worth: of a prompt with several groups the longest counts."""
    pair.prefill.begin_step(PrefillStep(progress=PROGRESS))
    pair.prefill.attention_begins("layer.2")
    pair.prefill.attention_begins("elsewhere")
    pair.prefill.kv_issued("")
    pair.prefill.attention_begins("layer.3")
    pair.prefill.kv_issued("")
    pair.prefill.kv_issued("layer.1")
    pair.prefill.kv_issued("elsewhere")
    pair.prefill.finish_forward()
    pair.prefill.end_step()

    assert pair.p.asked() == [
        ("sender.layers_at_once", 2),
        ("sync.begin_step", PROGRESS, None),
        ("sync.attention_begins", 2),
        ("sync.attention_begins", 3),
        ("sync.kv_issued", 3),
        ("sync.kv_issued", 1),
        ("sync.end_step",),
    ]


@pytest.mark.parametrize("by", ["an exception", "the next step"])
def test_a_pass_that_failed_is_void_and_forgotten(pair: Pair, by: str) -> None:
    """I1: at once, and its layers are not handed over by the step after it."""
    pair.under_way()
    pair.prefill.begin_step(PrefillStep(progress=PROGRESS))
    pair.p.asked()

    if by == "an exception":
        try:
            raise MemoryError
        except MemoryError:
            pair.prefill.end_step()
        assert pair.p.asked() == [("sync.begin_step", ())]
        assert pair.p.sent() == [fail("the forward pass failed")]
        pair.prefill.end_step()
        assert pair.p.asked() == []
    else:
        pair.prefill.begin_step(PrefillStep())
        assert pair.p.asked() == [
            ("sync.begin_step", ()),
            ("sender.layers_at_once", 0),
            ("sync.begin_step", [], None),
        ]
        assert pair.p.sent() == [fail("the forward pass failed")]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (PrefillStep(voids=[("p-a", "preempted")]), [fail("preempted")]),
        (PrefillStep(voids=[("p-b", "preempted")]), []),
        (PrefillStep(holds=["p-a"]), []),
        (PrefillStep(unfetched=["p-a"]), []),  # D has reserved
        (PrefillStep(abandoned=[Abandoned("a", "aborted")]), []),  # it has started
        (
            PrefillStep(abandoned=[Abandoned("c", "aborted")]),
            [],  # D is told when it asks
        ),
    ],
)
def test_a_step_says_at_once_what_has_ended(pair: Pair, step: PrefillStep, said: list[Any]) -> None:
    """D computes those prompts itself."""
    pair.under_way()

    pair.prefill.begin_step(step)

    assert pair.p.sent() == said


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT)]), [Started(transfer_id="a", tokens=16)]),
        (PrefillStep(abandoned=[Abandoned("a", "aborted")]), [fail("aborted", 0)]),
        (
            PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT)], holds=["p-a"], unfetched=["p-a"]),
            [Started(transfer_id="a", tokens=16), fail(NOT_FETCHED, 0)],
        ),
        (
            PrefillStep(started=[StartedPrompt("a", "p-a", PROMPT)], voids=[("p-a", "aborted")]),
            [Started(transfer_id="a", tokens=16), fail("aborted", 0)],
        ),
    ],
)
def test_a_step_says_at_once_what_becomes_of_a_prompt_that_is_watched(
    pair: Pair, step: PrefillStep, said: list[Any]
) -> None:
    """D has no blocks for it yet."""
    pair.meet()

    pair.prefill.begin_step(step)

    assert pair.p.sent() == said


def test_a_void_comes_before_the_step_and_is_said_at_once(pair: Pair) -> None:
    """I2: vLLM's V2 runner reuses the blocks before the step's metadata are bound."""
    pair.under_way()

    pair.prefill.void(PrefillStep(voids=[("p-a", "preempted")]))

    assert pair.p.sent() == [fail("preempted")]


def test_a_commit_takes_along_the_token_that_was_sampled(pair: Pair) -> None:
    """It waits for it, and is sent when a step's output has it: no chunk but the last one's does."""
    start_and_sample(pair)
    pair.push()
    assert pair.p.sent() == []

    for output in (sampled(), sampled(5, request="p-x")):
        pair.prefill.tokens_sampled(output)
        assert pair.p.sent() == []
    pair.prefill.tokens_sampled(sampled(8, 9))
    assert pair.p.sent() == [commit(first=SampledToken(id=8))]

    pair.carry()
    report = pair.decode.take_report()
    assert report is not None
    assert report.first_tokens == {"d-a": SampledToken(id=8)}
    pair.prefill.tokens_sampled(sampled(10))
    assert pair.p.sent() == []
    assert pair.prefill._awaited == {}


@pytest.mark.parametrize("step", [PrefillStep(holds=["p-a"]), PrefillStep(voids=[("p-a", "aborted")])])
def test_a_prompt_that_has_ended_waits_for_no_token(pair: Pair, step: PrefillStep) -> None:
    """Nor one that ends in the step in which it starts."""
    start_and_sample(pair)
    pair.push()
    pair.prefill.end_step()
    pair.prefill.begin_step(step)
    pair.carry()
    both = PrefillStep(started=[StartedPrompt("b", "p-b", PROMPT, logprobs=0)])
    pair.prefill.begin_step(replace(both, voids=[("p-b", "aborted")]))

    assert pair.prefill._awaited == {}


def test_a_token_that_is_not_asked_for_is_not_waited_for(pair: Pair) -> None:
    """D samples it."""
    start_and_sample(pair, logprobs=None)
    pair.push()

    assert pair.p.sent() == [commit()]


def test_blocks_are_released_once_when_nothing_reads_them(pair: Pair) -> None:
    """Then they are freed."""
    pair.under_way()
    pair.prefill.begin_step(PrefillStep(holds=["p-a"]))
    assert pair.prefill.take_released() == set()

    pair.push()

    assert pair.prefill.take_released() == {"p-a"}
    assert pair.prefill.take_released() == set()
