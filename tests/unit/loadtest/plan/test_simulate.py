import random
from itertools import accumulate
from typing import Any

import msgspec
import pytest

from baton.loadtest.errors import RunError
from baton.loadtest.measures.record import TIMEOUT
from baton.loadtest.plan.calibration import Decode, Link, Prefill
from baton.loadtest.plan.demand import Demand
from baton.loadtest.plan.nodes import DecodeNode, PrefillNode
from tests.unit.loadtest.plan.made import calibration, demand, run, step_by_step, ttfts


def mixed(count: int, seed: int = 2) -> list[Demand]:
    rng = random.Random(seed)
    due = accumulate(rng.expovariate(8) for _ in range(count))
    return [demand(at, rng.randint(10, 400), rng.randint(1, 60)) for at in due]


def test_an_idle_pair_takes_the_time_of_its_steps() -> None:
    """TTFT is P's step, D's step and the overhead; every further token is a step. No token comes before its request."""
    outcome = run([demand(5.0, output=4)], calibration(overhead_s=0.02))

    (only,) = outcome.records
    assert only.ttft_s == pytest.approx(0.1 + 0.01 + 0.02)
    assert only.tpot_s == pytest.approx(0.01)
    assert only.started_s == 5.0
    assert outcome.duration_s == pytest.approx(0.1 + 4 * 0.01 + 0.02)
    assert ttfts(run([demand(5.0, output=4)], calibration(overhead_s=-1.0))) == [0.0]


def test_a_first_token_waits_for_the_other_answers() -> None:
    """As long for one of them as for two; the tokens behind it come as fast as ever, and a lone one does not wait."""
    found = calibration(overhead_s=0.02, overhead_busy_s=0.003)

    for sequences, waited_s in ((1, 0.0), (2, 0.003), (3, 0.003)):
        for record in run([demand(0.0, 30, 9)] * sequences, found).records:
            assert record.ttft_s == pytest.approx(0.1 + 0.01 + 0.02 + waited_s)
            assert record.tpot_s == pytest.approx(0.01)


LINK = Link(gbit_s=0.008, kv_bytes_per_token=500, layers=5)  # 100 tokens: 0.05 s
SLOW_LINK = Link(gbit_s=0.008, kv_bytes_per_token=3000, layers=5)  # 100 tokens: 0.3 s
CACHING = Prefill(step_s=0.0, token_s=0.001, max_num_batched_tokens=1000)
SMALL_POOL = Decode(step_s=0.01, sequence_s=0.0, kv_tokens=150)


@pytest.mark.parametrize(
    ("load", "nodes", "ended_s"),
    [
        # Short prompts that come during a step share the next one.
        ([demand(at, 30) for at in (0.0, 0.01, 0.02, 0.03)], {}, [0.11, 0.21, 0.21, 0.21]),
        # A long prompt is computed in steps of at most 100, and context makes later ones dearer.
        (
            [demand(tokens=250)],
            {"prefill": Prefill(step_s=0.1, token_s=0.001, token_context_s=1e-6, max_num_batched_tokens=100)},
            [3 * 0.1 + 250 * 0.001 + (100 * 50 + 100 * 150 + 50 * 225) * 1e-6 + 0.01],
        ),
        # Each prompt has its price once, however many steps it takes.
        (
            [demand(tokens=50), demand(tokens=80)],
            {"prefill": Prefill(step_s=0.1, token_s=0.0, prompt_s=0.01, max_num_batched_tokens=100)},
            [0.13, 0.23],
        ),
        # A chunk of one prompt leaves the rest of the step to the next one.
        ([demand(0.0, 150), demand(0.0, 50)], {}, [0.21, 0.21]),
        # No more sequences are decoded than allowed.
        (
            [demand(0.0, 10, 10)] * 3,
            {"decode": Decode(step_s=0.01, sequence_s=0.0, max_num_seqs=2)},
            [0.2, 0.2, 0.3],
        ),
        # An arrival delays the next step: reading a request and receiving its KV costs those that are being decoded, once.
        (
            [demand(0.0, 100, 30), demand(0.155, 1, 1)],
            {"decode": Decode(step_s=0.01, sequence_s=0.0, arrival_s=0.004)},
            [0.264 + 0.01, 0.1 + 30 * 0.01 + 0.004],
        ),
        # A prompt waits for room on the prefill node until KV has left it.
        (
            [demand()] * 3,
            {"prefill": Prefill(step_s=0.1, token_s=0.0, max_num_batched_tokens=1000, kv_tokens=250)},
            [0.11, 0.11, 0.21],
        ),
        # KV stays on the prefill node until an answer has ended on the decode node.
        ([demand(output=40)] * 2, {"decode": SMALL_POOL}, [0.5, 0.9]),
        # KV that waited for room is sent in full: nothing of its transfer is hidden.
        ([demand(output=40)] * 2, {"decode": SMALL_POOL, "link": LINK}, [0.51, 0.51 + 0.05 + 0.4]),
        # Over a link that is faster than computing only the last layer's share shows; over a slow one, of computing the first's.
        ([demand()], {"link": LINK}, [0.1 + 0.05 / 5 + 0.01]),
        ([demand()], {"link": SLOW_LINK}, [0.1 / 5 + 0.3 + 0.01]),
        # A cached prefix is not computed again, and its KV is sent all the same.
        (
            [demand(float(at), blocks=blocks, block_tokens=40) for at, blocks in enumerate(("ab", "ab", "xb"))],
            {"prefill": CACHING, "link": Link(gbit_s=0.008, kv_bytes_per_token=1000, layers=1)},
            [0.1 + 0.1 + 0.01, 1 + 0.02 + 0.1 + 0.01, 2 + 0.21],
        ),
        # A small cache forgets what was used least recently.
        (
            [demand(float(at), 50, blocks=(name,), block_tokens=40) for at, name in enumerate("aabca")],
            {"prefill": msgspec.structs.replace(CACHING, kv_tokens=100)},
            [0.06, 1.02, 2.06, 3.06, 4.06],
        ),
    ],
)
def test_requests_end_when_what_they_wait_for_is_over(
    load: list[Demand], nodes: dict[str, Any], ended_s: list[float]
) -> None:
    """Steps of 100 tokens and 0.1 s on P, of 10 ms on D, but for what is given."""
    ended = sorted(record.ended_s for record in run(load, calibration(**nodes)).records)

    assert ended == pytest.approx(ended_s)


def test_two_transfers_into_one_node_share_its_link() -> None:
    """Two prefill nodes send to one decode node: the second one's KV comes after the first one's."""
    slowest = [max(ttfts(run([demand(), demand()], calibration(link=SLOW_LINK), 2, decode))) for decode in (2, 1)]

    assert slowest == pytest.approx([0.33, 0.63])


def test_every_request_ends_once_and_pools_are_never_overfull(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small pool on both sides, and far more requests than fit: full at times, never more; nothing is lost or made up."""
    prefill = Prefill(step_s=0.02, token_s=1e-4, max_num_batched_tokens=300, kv_tokens=500)
    decode = Decode(step_s=0.01, sequence_s=0.001, kv_tokens=1000)
    watch = Watch()
    monkeypatch.setattr(PrefillNode, "_room", watch, raising=False)
    monkeypatch.setattr(DecodeNode, "_room", watch, raising=False)

    load = mixed(400)
    outcome = run(load, calibration(prefill=prefill, decode=decode), 2, 2)

    assert [(one.input_tokens, one.output_tokens, one.due_s) for one in outcome.records] == [
        (one.input_tokens, one.output_tokens, one.due_s) for one in load
    ]
    assert all(one.ok and one.ttft_s and one.latency_s and one.latency_s >= one.ttft_s for one in outcome.records)
    assert len(watch.least) == 4
    for least_room in watch.least.values():
        assert 0 <= least_room < 200


class Watch:
    """An attribute of which the least value is remembered, by object."""

    def __init__(self) -> None:
        self.now: dict[Any, float] = {}
        self.least: dict[Any, float] = {}

    def __get__(self, owner: Any, _: Any) -> float:
        return self.now[owner]

    def __set__(self, owner: Any, value: float) -> None:
        self.now[owner] = value
        self.least[owner] = min(value, self.least.get(owner, value))


def test_stretches_are_the_same_as_single_steps() -> None:
    """A batch that changes all the time, step by step and in stretches, with KV that is there at once."""
    rng = random.Random(4)
    decode = Decode(step_s=0.013, sequence_s=0.0017, several_s=0.004, context_token_s=3e-6, max_num_seqs=1000)
    due = sorted(rng.uniform(0, 20) for _ in range(120))
    load = [demand(at, rng.randint(10, 900), rng.randint(2, 80)) for at in due]
    instant = Prefill(step_s=1e-12, token_s=0.0, max_num_batched_tokens=100_000)

    found = run(load, calibration(prefill=instant, decode=decode), prefill=120).records

    for one, other in zip(found, step_by_step(load, decode), strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s, abs=1e-6)
        assert one.latency_s == pytest.approx(other.latency_s, abs=1e-6)


def test_requests_that_never_fit_are_refused() -> None:
    small = Decode(step_s=0.01, sequence_s=0.0, kv_tokens=120)

    with pytest.raises(RunError, match="request of 130 tokens never fits into a decode node's KV pool of 120 tokens"):
        run([demand(output=30)], calibration(decode=small))
    with pytest.raises(RunError, match="prompt of 100 tokens never fits into a prefill node's KV pool of 99 tokens"):
        run([demand()], calibration(prefill=Prefill(step_s=1, token_s=0, kv_tokens=99)))


def test_a_prompt_goes_where_its_prefix_is() -> None:
    """Unless that node has too much to do."""
    prefill = Prefill(step_s=0.0, token_s=0.001, max_num_batched_tokens=100)
    shared: dict[str, Any] = {"blocks": ("a",), "block_tokens": 80}
    load = [demand(0.0, **shared), demand(1.0), demand(2.0, **shared), demand(2.0, **shared)]

    found = ttfts(run(load, calibration(prefill=prefill), 2, 4))

    assert found[2] == pytest.approx(0.03)
    assert found[3] == pytest.approx(0.11)  # 100 tokens in flight there, and 20 new: the other node is sooner done


def test_full_pools_that_wait_for_each_other_are_failures() -> None:
    """The share of good requests counts them; a search goes on."""
    prefill = Prefill(step_s=0.1, token_s=0.0, max_num_batched_tokens=1000, kv_tokens=100)
    decode = Decode(step_s=0.01, sequence_s=0.0, kv_tokens=100)
    load = [demand(0.0, 60, 30), demand(0.0, 60, 30)]

    outcome = run(load, calibration(prefill=prefill, decode=decode), 1, 1)

    assert [record.error for record in outcome.records] in (["", ""], ["", TIMEOUT], [TIMEOUT, TIMEOUT])
