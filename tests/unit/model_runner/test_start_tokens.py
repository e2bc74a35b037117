"""Requests that start with tokens, in a worker; and the generator of random numbers that can take back its last draw."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.platforms import current_platform
from vllm.v1.outputs import AsyncModelRunnerOutput, LogprobsLists, ModelRunnerOutput
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from baton.kv_connector.protocol.messages import SampledToken
from baton.kv_connector.worker_side.sampled_token import has_token, sampled_token
from baton.model_runner import start_tokens
from baton.model_runner.start_tokens import RewindableGenerator, StartTokens, advance
from baton.model_runner.watched import WrappedOutput

VOCABULARY = 50


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(seed)


def test_a_generator_is_advanced_by_as_many_draws_as_the_sampler_makes() -> None:
    """Of the installed vLLM."""
    current_platform.import_kernels()
    theirs, ours = seeded(), seeded()
    sampler = TopKTopPSampler()
    for _ in range(3):
        sampler.forward(torch.zeros(1, VOCABULARY), {0: theirs}, None, None)

    advance(ours, 3, VOCABULARY)

    assert torch.equal(theirs.get_state(), ours.get_state())


def test_a_draw_can_be_taken_back_as_vllm_does() -> None:
    """`gen.set_offset(gen.get_offset() - 4)`, for a chunk of a prompt that is not its last."""
    generator = RewindableGenerator.like(seeded())
    first = torch.randint(0, 1 << 30, (1,), generator=seeded())
    for _ in range(3):
        generator.keep()
        assert torch.equal(torch.randint(0, 1 << 30, (1,), generator=generator), first)
        generator.set_offset(generator.get_offset() - 4)


class Runner:
    """What the mixin touches of vLLM's V1 runner."""

    model_config = SimpleNamespace(use_fp64_gumbel=False)

    def __init__(self) -> None:
        self.added: list[Any] = []
        self.input_batch = SimpleNamespace(add_request=self.added.append, vocab_size=VOCABULARY, generators={})


class Base:
    """A worker whose step adds the new requests to its batch, as vLLM's does."""

    use_v2_model_runner = False

    def __init__(self) -> None:
        self.model_runner = Runner()

    def execute_model(self, scheduler_output: Any) -> None:
        for new in scheduler_output.scheduled_new_reqs:
            state = SimpleNamespace(req_id=new.req_id, output_token_ids=[], generator=seeded())
            self.model_runner.input_batch.add_request(state)


class Worker(StartTokens, Base):
    """With the mixin."""


def step(**tokens: list[int] | None) -> Any:
    """A step with new requests of two prompt tokens each, which may have more."""
    new = [
        SimpleNamespace(req_id=name, prompt_token_ids=[1, 2], prefill_token_ids=all_) for name, all_ in tokens.items()
    ]
    return SimpleNamespace(scheduled_new_reqs=new)


def test_a_request_begins_with_its_tokens_and_their_draws() -> None:
    """Others begin with none; what stood in vLLM's batch stands there again."""
    worker = Worker()

    worker.execute_model(step(a=[1, 2, 8, 9], b=None))

    started, other = worker.model_runner.added
    expected = seeded()
    advance(expected, 2, VOCABULARY)
    assert (started.output_token_ids, other.output_token_ids) == ([8, 9], [])
    assert torch.equal(started.generator.get_state(), expected.get_state())
    assert torch.equal(other.generator.get_state(), seeded().get_state())
    assert worker.model_runner.input_batch.add_request == worker.model_runner.added.append


class Sampled:
    """A connector that hears what was sampled."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def tokens_sampled(self, output: Any) -> None:
        self.heard.append(output)


def test_an_asynchronous_output_is_told_of_when_it_is_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before: the device is late."""
    connector = Sampled()
    inner = WrappedOutput(SimpleNamespace(), lambda: "tokens")
    monkeypatch.setattr(start_tokens, "_connector", lambda: connector)
    late = start_tokens._noted(inner)
    assert isinstance(late, AsyncModelRunnerOutput)
    assert connector.heard == []

    assert late.get_output() == "tokens"

    assert connector.heard == ["tokens"]


def test_a_worker_without_a_connector_has_none_to_tell() -> None:
    """A plain server may have our worker class."""
    assert start_tokens._connector() is None


def output_of(rows: list[list[int]]) -> ModelRunnerOutput:
    """A step's output for requests r0, r1, …; the logprobs of each token are its own number and its double."""
    names = [f"r{i}" for i in range(len(rows))]
    counts = [0]
    for row in rows:
        counts.append(counts[-1] + len(row))
    ids = torch.tensor([[token, 2 * token] for row in rows for token in row]).numpy()
    lists = LogprobsLists(ids, -ids.astype("float32"), ids[:, 0], counts)
    return ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled_token_ids=rows, logprobs=lists)


@pytest.mark.parametrize(
    ("request_id", "logprobs", "found"),
    [
        ("r1", 0, SampledToken(id=5)),
        ("r2", 2, SampledToken(id=9, logprob_ids=(9, 18), logprobs=(-9.0, -18.0), rank=9)),
        ("r2", 1, SampledToken(id=9, logprob_ids=(9,), logprobs=(-9.0,), rank=9)),
        ("r3", 0, None),  # a placeholder, which a peer would refuse together with the whole message
    ],
)
def test_a_request_s_own_row_is_taken(request_id: str, logprobs: int, found: SampledToken | None) -> None:
    """Also where other rows have no token, or several."""
    assert sampled_token(output_of([[], [5, 6], [9], [-1]]), request_id, logprobs) == found


@pytest.mark.parametrize(("request_id", "has"), [("r0", False), ("r1", True), ("r9", False)])
def test_a_chunk_that_is_not_the_last_has_no_token(request_id: str, has: bool) -> None:
    assert has_token(output_of([[], [5]]), request_id) is has


def test_logprobs_that_a_step_does_not_have_keep_its_token_here() -> None:
    """An answer that lacks some would end the decode node's server in the middle of it."""
    output = output_of([[5]])
    output.logprobs = None

    assert sampled_token(output, "r0", 2) is None
