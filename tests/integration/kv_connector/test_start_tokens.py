"""Requests that start with a token, in vLLM's own scheduler with its own block pool; the workers are played."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.request import Request, RequestStatus

from baton.contracts.kv_transfer import CHOICE, Start, TransferParams
from baton.kv_connector.handoff.metadata import DecodeReport, Ending
from baton.kv_connector.protocol.messages import SampledToken
from tests.support.schedulers import BLOCK_TOKENS, end_step, engine_config, request_of, scheduler_of

TOKEN = 7
PEER = "tcp://127.0.0.1:1"
HAS = (11, 12, 13)  # what a client has of an answer


class Engine:
    """A decode node's scheduler, one rank whose steps sample `TOKEN`, and peers that send what a test says."""

    def __init__(self, folder: Path, blocks: int, *, windows: bool = False, **flags: Any) -> None:
        self.scheduler = scheduler_of(engine_config(folder, "kv_consumer", **flags), blocks, windows=windows)
        self.pool: Any = self.scheduler.kv_cache_manager.block_pool
        self.told: list[EngineCoreOutput] = []

    def ask(
        self,
        name: str,
        tokens: int,
        *,
        start: Start = (),
        peer: str = PEER,
        named: str = "",
        kv_only: bool = False,
        **sampling: Any,
    ) -> Request:
        """A request arrives that wants its prompt's KV and first token from a prefill node, or starts with tokens that the client has.

        Args:
            name: of the request; its first letter names the transfer and decides of the prompt, a number behind it is that of a choice.
            tokens: of its prompt.
            start: what the client has, by choice.
            peer: "" if there is no transfer.
            named: its first letter decides of the prompt.
            kv_only: nothing is to be computed if the KV does not come.
            sampling: of vLLM's parameters.
        """
        params = TransferParams(
            transfer_id=name[0] * 32, role="decode", peer=peer, first_token=True, start=start, kv_only=kv_only
        )
        if name[1:]:
            sampling["extra_args"] = {CHOICE: int(name[1:])}
        request = request_of(name, tokens, params, prompt=named or name, **sampling)
        self.scheduler.add_request(request)
        return request

    def step(self, *, started: Sequence[str] = (), received: Sequence[str] = (), failed: Sequence[str] = ()) -> int:
        """One step; return how many tokens it computes.

        Args:
            started: requests whose prompts P says that it computes.
            received: those whose KV has come, with a token.
            failed: those whose KV does not come.
        """
        output = self.scheduler.schedule()
        requests = [self.scheduler.requests[name] for name in output.num_scheduled_tokens]
        ending = Ending(at_s=0.0, reserve_sent_s=0.0, committed=True, timings_s={}, pushing_s=0.0)
        report = DecodeReport(
            endings=dict.fromkeys(received, ending),
            started={name[0] * 32 for name in started},
            failed=dict.fromkeys(failed, "as the test says"),
            first_tokens=dict.fromkeys(received, SampledToken(id=TOKEN)),
            closed=[*received, *failed],
        )
        told = end_step(
            self.scheduler,
            output,
            {each.request_id: [TOKEN] for each in requests if each.num_computed_tokens >= each.num_tokens},
            finished_recving={*received, *failed},
            failed_recving=set(failed),
            kv_connector_worker_meta=report,
        )
        self.told = [output for outputs in told.values() for output in outputs]
        return int(output.total_num_scheduled_tokens)


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., Engine]:
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


@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_a_peer_a_request_starts_with_what_its_client_has(
    engine: Callable[..., Engine], asynchronous: bool
) -> None:
    """On an idle engine: the tokens come out before anything is computed, the prompt and they are computed together."""
    made = engine(100, async_scheduling=asynchronous)
    request = made.ask("a", 40, start=(HAS,), peer="", logprobs=2)

    assert made.step() == 0
    assert [output.new_token_ids for output in made.told] == [[token] for token in HAS]
    assert all(output.new_logprobs is not None for output in made.told)
    assert (stats := made.told[0].prefill_stats) is not None
    assert (stats.num_prompt_tokens, stats.num_cached_tokens) == (40, 0)
    assert made.step() == 43
    assert request.is_finished()
    assert list(request.output_token_ids) == [*HAS, TOKEN]
    assert [(output.new_token_ids, output.finish_reason) for output in made.told] == [([TOKEN], FinishReason.LENGTH)]
    made.step()
    assert made.pool.get_num_free_blocks() == 99
    assert not made.scheduler.has_requests()


def test_what_the_prefix_cache_has_is_not_computed_again(engine: Callable[..., Engine]) -> None:
    """Of the prompt, and of the tokens behind it."""
    made = engine(100)
    made.ask("a", 40, start=((*range(20, 30),),), peer="", max_tokens=12)
    for _ in range(4):
        made.step()

    request = made.ask("b", 40, named="a", start=((*range(20, 30),),), peer="", max_tokens=12)
    made.step()

    assert made.step() == 50 - 48
    assert list(request.output_token_ids) == [*range(20, 30), TOKEN]


def test_a_long_start_is_computed_in_chunks(engine: Callable[..., Engine]) -> None:
    """As a long prompt is; nothing is sampled before its end."""
    made = engine(100, max_num_batched_tokens=32)
    start = tuple(range(100, 150))
    request = made.ask("a", 20, start=(start,), peer="", max_tokens=60)

    assert [made.step() for _ in range(4)] == [0, 32, 32, 6]
    assert list(request.output_token_ids) == [*start, TOKEN]


@pytest.mark.parametrize("fails", [False, True])
def test_with_a_peer_it_starts_with_them_whatever_becomes_of_the_kv(engine: Callable[..., Engine], fails: bool) -> None:
    """Not with the token that the prefill node has sampled."""
    made = engine(100)
    request = made.ask("a", 40, start=(HAS,))
    made.step()
    assert list(request.output_token_ids) == [*HAS]
    assert made.step() == 0
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS

    made.step(**{"failed" if fails else "received": "a"})

    assert list(request.output_token_ids) == [*HAS]
    assert made.step() == (43 if fails else 3)
    assert list(request.output_token_ids) == [*HAS, TOKEN]
    made.step()
    assert made.pool.get_num_free_blocks() == 99


@pytest.mark.parametrize("peer", ["", PEER])
@pytest.mark.parametrize(
    ("sampling", "end", "has"),
    [
        ({"stop_token_ids": [12]}, FinishReason.STOP, HAS[:2]),
        ({"max_tokens": 3}, FinishReason.LENGTH, HAS),
    ],
)
def test_an_answer_that_ends_with_them_takes_no_step(
    engine: Callable[..., Engine], peer: str, sampling: dict[str, Any], end: FinishReason, has: tuple[int, ...]
) -> None:
    """It is not reserved for, and nothing of it is left."""
    made = engine(100)
    request = made.ask("a", 40, start=(HAS,), peer=peer, **sampling)
    made.step()

    assert tuple(request.output_token_ids) == has
    assert made.told[-1].finish_reason == end
    assert made.step() == 0
    assert made.pool.get_num_free_blocks() == 99
    assert not made.scheduler.has_requests()


def test_a_request_that_cannot_start_with_them_ends_with_an_error(engine: Callable[..., Engine]) -> None:
    """Before anything is computed: what the client has would be said twice."""
    made = engine(100)
    made.ask("a", 40, start=((1_000_000,),))

    assert made.step() == 0
    assert [(output.request_id, output.new_token_ids, output.finish_reason) for output in made.told] == [
        ("a", [], FinishReason.ERROR)
    ]
    made.step()
    assert not made.scheduler.has_requests()


def test_one_that_is_aborted_before_it_has_started_leaves_nothing(engine: Callable[..., Engine]) -> None:
    """Its client has gone again."""
    made = engine(100)
    for name in "ab":
        made.ask(name, 40, start=(HAS,), kv_only=name == "b")
        made.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    made.step()

    assert made.told == []
    assert made.scheduler._held == made.scheduler._kv_only == []
    made.step()
    assert not made.scheduler.has_requests()


def test_a_pool_full_of_prompts_that_start_with_tokens_does_not_stand_still(engine: Callable[..., Engine]) -> None:
    """VLLM keeps free what they need besides their prompts."""
    made = engine(17)
    requests = [made.ask(name, 8 * BLOCK_TOKENS, start=(HAS,)) for name in "ab"]
    made.step()
    made.step(started="ab")
    made.step()
    coming = {request.request_id: request for request in requests}
    for _ in range(20):
        waiting = [name for name, one in coming.items() if one.status == RequestStatus.WAITING_FOR_REMOTE_KVS]
        made.step(received=[name for name in waiting if coming.pop(name)], started="ab")

    assert all(request.is_finished() for request in requests)
    assert made.pool.get_num_free_blocks() == 16


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_several_answers_start_without_a_peer(engine: Callable[..., Engine], prefix_cache: bool) -> None:
    """Each with its own tokens; of the third choice nothing is known."""
    made = engine(100, enable_prefix_caching=prefix_cache)
    start = ((*range(20, 30),), HAS)
    requests = [made.ask(f"a{choice}", 40, start=start, peer="", max_tokens=12) for choice in range(3)]
    for _ in range(20):
        made.step()

    assert [list(request.output_token_ids) for request in requests] == [
        [*range(20, 30), TOKEN, TOKEN],
        [*HAS] + 9 * [TOKEN],
        12 * [TOKEN],
    ]
    assert not made.scheduler.has_requests()
    assert made.pool.get_num_free_blocks() == 99


@pytest.mark.parametrize("fails", [False, True])
def test_several_answers_share_the_kv_that_comes_for_the_first(engine: Callable[..., Engine], fails: bool) -> None:
    """Those that start, too, wait for it; none begins with the prefill node's token."""
    made = engine(100)
    requests = [made.ask(f"a{choice}", 40, start=((), HAS, (5,)), max_tokens=5) for choice in range(3)]
    made.step()
    assert [list(request.output_token_ids) for request in requests] == [[], [*HAS], [5]]
    assert [made.step() for _ in range(2)] == [0, 0]
    assert requests[0].status == RequestStatus.WAITING_FOR_REMOTE_KVS

    made.step(**{"failed" if fails else "received": ["a0"]})
    computed = [made.step() for _ in range(10)]

    assert [list(request.output_token_ids) for request in requests] == [
        5 * [TOKEN],
        [*HAS, TOKEN, TOKEN],
        [5] + 4 * [TOKEN],
    ]
    # Of the prompt its last token or all of it, then what is in no whole block of it; the tokens in between; one a step.
    assert sum(computed) == (40 if fails else 1) + (8 + 3) + (8 + 1) + (4 + 1 + 3)
    assert made.pool.get_num_free_blocks() == 99


def test_no_request_waits_for_an_answer_that_has_ended_with_its_tokens(engine: Callable[..., Engine]) -> None:
    """It was the one that should have received the KV: the others compute the prompt."""
    made = engine(100)
    requests = [made.ask(f"a{choice}", 40, start=(HAS, (5,)), max_tokens=3) for choice in range(3)]
    for _ in range(10):
        made.step()

    assert [list(request.output_token_ids) for request in requests] == [[*HAS], [5, TOKEN, TOKEN], 3 * [TOKEN]]
    assert not made.scheduler.has_requests()
    assert made.pool.get_num_free_blocks() == 99


def test_an_answer_that_ends_with_its_tokens_lets_the_first_one_wait(engine: Callable[..., Engine]) -> None:
    made = engine(100)
    first, ended = (made.ask(f"a{choice}", 40, start=((), HAS), max_tokens=3) for choice in range(2))
    made.step()
    made.step()

    assert (ended.is_finished(), first.status) == (True, RequestStatus.WAITING_FOR_REMOTE_KVS)
    made.step(received=["a0"])
    for _ in range(5):
        made.step()
    assert list(first.output_token_ids) == 3 * [TOKEN]
    assert made.pool.get_num_free_blocks() == 99


@pytest.mark.parametrize("kv_only", [True, False])
def test_a_request_for_kv_alone_ends_when_that_is_lost(tmp_path: Path, kv_only: bool) -> None:
    """In the step that brings the failure, and nothing is computed of it; any other request computes its prompt."""
    engine = Engine(tmp_path, 20)
    request = engine.ask("a", 3 * BLOCK_TOKENS, start=(HAS,), kv_only=kv_only)
    before = engine.step() + engine.step(started="a") + engine.step(failed="a")
    told = [(output.request_id, output.new_token_ids, output.finish_reason) for output in engine.told]

    assert before == 0
    assert request.is_finished() is kv_only
    assert told == ([("a", [], FinishReason.ABORT)] if kv_only else [])
    assert (engine.step() == 0) is kv_only
