"""Requests that start with tokens, in a worker with vLLM's V1 runner; and what a prefill worker samples.

`kv_connector/scheduler_side/start_tokens.py` has the scheduler's part. V1 begins every new request without output: the
tokens are put into its state before that enters the batch, and a seeded generator makes the draws that were made for
them elsewhere. V2 takes a new request's tokens as they are, and its noise is a function of seed and position.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from baton.kv_connector.connector import BatonConnector
from baton.kv_connector.vllm_compat.node_role import role_of
from baton.model_runner.runner.attribute_patch import in_place_of
from baton.model_runner.watched import WrappedOutput

_DECODE = 1  # any number, in place of none
_CUDA_DRAW = 4  # what a draw adds to a generator's offset; `_bookkeeping_sync` of vLLM's V1 runner takes as much back


class StartTokens:
    """Mixin of a worker whose requests may start with tokens."""

    model_runner: Any
    use_v2_model_runner: bool
    vllm_config: Any

    def compile_or_warm_up_model(self) -> Any:
        """Warm up, after which vLLM sets the seed; a decode node must not draw for second tokens what prefill nodes draw for first ones."""
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        transfer, seed = self.vllm_config.kv_transfer_config, self.vllm_config.model_config.seed
        if transfer is not None and role_of(transfer) == "decode" and seed is not None:
            reseed(seed, self.vllm_config.parallel_config.data_parallel_index)
        return result

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model; on V1 its new requests begin with the tokens that they start with."""
        if self.use_v2_model_runner or not getattr(scheduler_output, "scheduled_new_reqs", ()):
            return _noted(super().execute_model(scheduler_output, *args, **kwargs))  # type: ignore[misc]
        with _begin_with_tokens(self.model_runner, scheduler_output):
            return _noted(super().execute_model(scheduler_output, *args, **kwargs))  # type: ignore[misc]

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        if not self.use_v2_model_runner:
            for generator in self.model_runner.input_batch.generators.values():
                if isinstance(generator, RewindableGenerator):
                    generator.keep()
        return _noted(super().sample_tokens(*args, **kwargs))  # type: ignore[misc]


class RewindableGenerator(torch.Generator):
    """A generator on a CPU whose last draw can be taken back.

    vLLM's V1 runner samples in every step of a prompt that comes in chunks, and takes a seeded request's draw back by
    its generator's offset. A CPU's has none, which ends the engine ("CPU Generator does not use offset", 0.28 to 0.33).
    """

    _kept: torch.Tensor

    @classmethod
    def like(cls, other: torch.Generator) -> "RewindableGenerator":
        made = cls(device=other.device)
        made.set_state(other.get_state())
        made.keep()
        return made

    def keep(self) -> None:
        """Remember where it is, before a step draws."""
        self._kept = self.get_state()

    def get_offset(self) -> int:
        """Return a number; only its difference from what `set_offset` gets is of use."""
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        """Take back the draws since `keep`."""
        if offset >= 0:
            raise ValueError("a CPU generator can only take back its last draw")
        return self.set_state(self._kept)


def reseed(seed: int, data_parallel_index: int) -> None:
    """Seed what unseeded requests are sampled with: alike on all ranks of a decode engine, unlike on any other engine.

    By default `seed` is the same on every node. vLLM's `set_random_seed` tells the engines of one node apart.
    """
    drawn = int(np.random.SeedSequence((seed, data_parallel_index, _DECODE)).generate_state(1)[0])
    random.seed(drawn)
    np.random.seed(drawn)
    torch.manual_seed(drawn)  # of all devices


def advance(generator: torch.Generator, draws: int, vocab_size: int, *, fp64: bool = False) -> None:
    """Bring one request's generator to where it is after so many tokens have been sampled with it by vLLM's V1 sampler.

    `fp64`: noise is float64 (`--use-fp64-gumbel`). Source: `TopKTopPSampler.forward_cpu` (a seed for each token from
    0.32 on), `random_sample` (a row of noise for each token).
    """
    if generator.device.type == "cuda":
        generator.set_offset(generator.get_offset() + _CUDA_DRAW * draws)
        return
    by_seed = generator.device.type == "cpu" and hasattr(torch.ops._C, "fused_gumbel_argmax") and not fp64
    for _ in range(draws):
        if by_seed:
            torch.randint(0, 2**31, (1,), generator=generator, dtype=torch.long)
        else:
            dtype = torch.float64 if fp64 else torch.float32
            torch.empty(vocab_size, dtype=dtype, device=generator.device).exponential_(generator=generator)


@contextmanager
def _begin_with_tokens(runner: Any, scheduler_output: Any) -> Iterator[None]:
    starts = {
        new.req_id: new.prefill_token_ids[len(new.prompt_token_ids or ()) :]
        for new in scheduler_output.scheduled_new_reqs
        if new.prefill_token_ids is not None
    }
    batch, fp64 = runner.input_batch, getattr(runner.model_config, "use_fp64_gumbel", False)
    add = batch.add_request

    def add_request(state: Any) -> Any:
        if state.generator is not None and state.generator.device.type == "cpu":
            state.generator = RewindableGenerator.like(state.generator)
        if tokens := starts.pop(state.req_id, ()):
            state.output_token_ids.extend(tokens)
            if state.generator is not None:
                advance(state.generator, len(tokens), batch.vocab_size, fp64=fp64)
        return add(state)

    with in_place_of(batch, "add_request", add_request):
        yield


def _noted(output: Any) -> Any:
    """Tell the connector of a step's tokens, now or when they are on the host."""
    connector = _connector()
    if connector is None:
        return output
    if isinstance(output, ModelRunnerOutput):
        connector.tokens_sampled(output)
    if not isinstance(output, AsyncModelRunnerOutput):
        return output

    def get_output() -> Any:
        found = output.get_output()
        connector.tokens_sampled(found)
        return found

    return WrappedOutput(output, get_output)


def _connector() -> BatonConnector | None:
    """Return this worker's connector, which may stand beside others in a `MultiConnector`."""
    if not has_kv_transfer_group():
        return None
    group = get_kv_transfer_group()
    return next((one for one in (group, *getattr(group, "_connectors", ())) if isinstance(one, BatonConnector)), None)
