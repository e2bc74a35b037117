"""How a runner gets its transfer: how large, and which of vLLM's events it takes the place of."""

import inspect
import re
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput, GPUModelRunner

from baton.model_runner.runner import event_synced
from baton.model_runner.runner.event_synced import (
    COMPANIONS,
    EVENTS,
    OUTPUT,
    EventSynced,
    ListsEventSynced,
    slot_bytes_of,
)
from baton.model_runner.runner.piggybacked_copies import Companion, PiggybackedCopies
from baton.model_runner.tokens.packing import most_bytes
from baton.model_runner.tokens.transfer import TokenTransfer
from tests.support.fake_device import FakeDevice, Run
from tests.support.fake_lane import FakeLane, QueuedEvent

MAX_NUM_SEQS, MAX_MODEL_LEN, DRAFTS, TOP = 8, 4096, 3, 5


def config_of(*, drafts: int | None = DRAFTS, top: int = TOP) -> Any:
    """An engine's configuration, as far as anybody here looks."""
    return SimpleNamespace(
        speculative_config=None if drafts is None else SimpleNamespace(num_speculative_tokens=drafts),
        model_config=SimpleNamespace(max_logprobs=top, max_model_len=MAX_MODEL_LEN),
        scheduler_config=SimpleNamespace(max_num_seqs=MAX_NUM_SEQS),
    )


class Theirs:
    """A V1 runner of vLLM's that has a drafter's events, but for one that is not needed."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.device = torch.device("cuda", 0)
        for name in EVENTS:
            setattr(self, name, "spins")
        for buffer, _ in COMPANIONS.values():
            setattr(self, buffer, torch.zeros(MAX_NUM_SEQS))
        self.draft_token_ids_event = None

    def sample_tokens(self) -> Any:
        return getattr(self.output_module, OUTPUT)  # type: ignore[attr-defined]


class Runner(EventSynced, Theirs):
    """With ours mixed in, whose output is looked for in a module of its own."""

    output_module = ModuleType("gpu_model_runner")
    setattr(output_module, OUTPUT, AsyncGPUModelRunnerOutput)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One on the fake device, whose steps are sampled late."""
    device = FakeDevice(1, Run.BACKGROUND)

    def transfer_for(_device: torch.device, slot_bytes: int) -> TokenTransfer:
        asked.update(slot_bytes=slot_bytes)
        return TokenTransfer(FakeLane(device, device.stream()), slot_bytes)

    asked: dict[str, Any] = {}
    monkeypatch.setattr(event_synced, "transfer_for", transfer_for)
    made: Any = Runner(config_of())
    made.asked = asked
    yield made
    made.token_transfer.stop()
    device.close()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (config_of(), most_bytes(max_num_seqs=MAX_NUM_SEQS, speculative_tokens=DRAFTS, top_logprobs=TOP)),
        (config_of(drafts=None), most_bytes(max_num_seqs=MAX_NUM_SEQS, speculative_tokens=0, top_logprobs=TOP)),
        (config_of(top=-1), most_bytes(max_num_seqs=MAX_NUM_SEQS, speculative_tokens=DRAFTS, top_logprobs=20)),
    ],
)
def test_slots_are_sized_by_sequences_and_drafts(config: Any, expected: int) -> None:
    """And not by the model's length (vLLM #28025); logprobs of a whole vocabulary are no reason for a large slot."""
    assert slot_bytes_of(config) == expected


def test_a_runner_has_a_transfer_that_runs(runner: Any) -> None:
    """With slots of the engine's size, and a taker."""
    assert runner.asked == {"slot_bytes": slot_bytes_of(runner.vllm_config)}

    handle = runner.token_transfer.submit({"ids": torch.ones(1, 1)})

    assert handle.result()["ids"].item() == 1


def test_events_are_exchanged(runner: Any) -> None:
    """For such that sleep (vLLM #47081); one that vLLM has not made is not needed."""
    kinds = {name: type(getattr(runner, name)) for name in EVENTS}

    assert kinds == {
        "transfer_event": QueuedEvent,
        "prepare_inputs_event": QueuedEvent,
        "draft_token_ids_event": type(None),
        "valid_sampled_token_count_event": Companion,
        "num_accepted_tokens_event": Companion,
        "_num_valid_draft_tokens_event": Companion,
    }
    assert runner.valid_sampled_token_count_cpu is runner.valid_sampled_token_count_event
    assert isinstance(runner.draft_token_ids_cpu, torch.Tensor)


def test_on_an_npu_copies_stay_the_engine_s(runner: Any) -> None:
    """Only its waits sleep: it issues these copies at other places."""

    class OnNpu(ListsEventSynced, Theirs):
        output_module = ModuleType("model_runner_v1")

    made: Any = OnNpu(config_of())

    assert {type(getattr(made, name)) for name in EVENTS} == {QueuedEvent, type(None)}
    assert isinstance(made.valid_sampled_token_count_cpu, torch.Tensor)
    made.token_transfer.stop()


def test_outputs_are_ours_while_a_step_is_sampled(runner: Any) -> None:
    """And vLLM's again after it: another runner of the process makes its own."""
    assert runner.sample_tokens() is runner._make_output
    assert getattr(runner.output_module, OUTPUT) is AsyncGPUModelRunnerOutput


def test_no_event_of_the_installed_engine_is_forgotten() -> None:
    """Whatever its runner makes of events, and keeps, is exchanged; all that it waits for by its own is among them."""
    source = inspect.getsource(GPUModelRunner)
    made = re.findall(r"self\.(\w+)(?:: [^=\n]+)? = torch\.(?:cuda\.)?Event\(", source)
    waited_for = re.findall(r"self\.(\w+)\.synchronize\(\)", source)

    assert "transfer_event" in made
    assert set(made) == set(EVENTS)
    assert set(waited_for) <= set(EVENTS)


def test_a_copy_that_vllm_makes_itself_is_waited_for_by_its_own_event() -> None:
    """What is on the host is read only when the device has written it."""
    event = Mock()
    companion = Companion("drafts", event, PiggybackedCopies(Mock()), torch.zeros(2))

    companion.record("stream")
    companion.synchronize()

    assert event.mock_calls == [call.record("stream"), call.synchronize()]


def test_a_copy_that_the_host_has_overtaken_is_not_sent() -> None:
    transfer = Mock()
    copies = PiggybackedCopies(transfer)
    companion = Companion("drafts", Mock(), copies, torch.zeros(2))
    companion.note(companion.buffer, torch.ones(2))

    companion[:] = 5
    copies.submit({})

    transfer.submit.assert_called_once_with({})
