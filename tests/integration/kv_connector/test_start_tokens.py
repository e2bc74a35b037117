"""Requests that start with a token, in vLLM's own scheduler with its own block pool; the workers are played."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

from baton.contracts.kv_transfer import TransferParams
from baton.kv_connector.handoff.metadata import DecodeReport, Ending
from baton.kv_connector.protocol.messages import SampledToken
from tests.support.schedulers import BLOCK_TOKENS, engine_config, request_of, scheduler_of

TOKEN = 7


class Engine:
    """A decode node's scheduler, one rank whose steps sample `TOKEN`, and peers that send what a test says."""

    def __init__(self, folder: Path, blocks: int, *, windows: bool = False) -> None:
        self.scheduler = scheduler_of(engine_config(folder, "kv_consumer"), blocks, windows=windows)
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool

    def ask(self, name: str, tokens: int, **sampling: Any) -> Request:
        """A request arrives that wants its prompt's KV and first token from a prefill node."""
        params = TransferParams(transfer_id=name * 32, role="decode", peer="tcp://127.0.0.1:1", first_token=True)
        request = request_of(name, tokens, params, **sampling)
        self.scheduler.add_request(request)
        return request

    def step(self, *, started: Sequence[str] = (), received: Sequence[str] = ()) -> int:
        """One step; return how many tokens it computes.

        Args:
            started: requests whose prompts P says that it computes.
            received: those whose KV has come, with a token.
        """
        output = self.scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        ending = Ending(at_s=0.0, reserve_sent_s=0.0, committed=True, timings_s={}, pushing_s=0.0)
        report = DecodeReport(
            endings=dict.fromkeys(received, ending),
            started={name * 32 for name in started},
            first_tokens=dict.fromkeys(received, SampledToken(id=TOKEN)),
            closed=list(received),
        )
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[TOKEN] if each.num_computed_tokens >= each.num_tokens else [] for each in requests],
                kv_connector_output=KVConnectorOutput(finished_recving=set(received), kv_connector_worker_meta=report),
            ),
        )
        return int(output.total_num_scheduled_tokens)


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
    """Makes one."""
    return lambda *arguments, **more: Engine(tmp_path, *arguments, **more)


def test_a_pool_full_of_received_prompts_does_not_stand_still(engine: Callable[..., Engine]) -> None:
    """Each would need one more block for its first step, and none can be preempted: those without room compute as before."""
    made = engine(17)  # 16, and the null block
    one, other = made.ask("a", 8 * BLOCK_TOKENS), made.ask("b", 8 * BLOCK_TOKENS)
    made.step()
    made.step(started="ab")
    made.step()
    assert made.pool.get_num_free_blocks() == 0

    made.step(received="ab")
    for _ in range(20):
        made.step()

    assert one.is_finished()
    assert other.is_finished()
    assert made.pool.get_num_free_blocks() == 16


def test_a_received_request_computes_one_token_in_its_first_step(engine: Callable[..., Engine]) -> None:
    """The second of its answer."""
    made = engine(100)
    request = made.ask("a", 8 * BLOCK_TOKENS)
    made.step()

    made.step(received="a")

    assert list(request.output_token_ids) == [TOKEN]
    assert made.step() == 1
    assert list(request.output_token_ids) == [TOKEN, TOKEN]


@pytest.mark.parametrize("windows", [False, True])
def test_an_answer_of_one_token_takes_no_step(engine: Callable[..., Engine], windows: bool) -> None:
    """Its blocks are back, of every KV cache group."""
    made = engine(100, windows=windows)
    request = made.ask("a", 40, stop_token_ids=[TOKEN])
    made.step()

    made.step(received="a")

    assert request.is_finished()
    assert (made.step(), made.pool.get_num_free_blocks()) == (0, 99)
