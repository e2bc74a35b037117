"""One decode rank whose request comes from two prefill ranks: flows, joined."""

import random
from collections.abc import Callable, Sequence

import pytest

from baton.kv_connector.handoff.consumer import CANCELLED
from baton.kv_connector.handoff.gather import Flow, Gather
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.pushing import TransferLayout
from baton.kv_connector.protocol.messages import SampledToken
from tests.unit.kv_connector.handoff.machines import PROMPT, WISH, make_consumer, make_producer

FLOWS = [Flow("t/0-0", "tcp://p:0"), Flow("t/1-0", "tcp://p:1")]


def producer_of(incarnation: int, shares: int, layers: int = 2) -> Producer:
    """A P rank that pushes so many of a D rank's parts."""
    return make_producer(incarnation, terms=lambda _: TransferLayout(range(layers), shares=shares))


class Trio:
    """Two P ranks and one D rank, and the mail between them."""

    def __init__(self, shares: Sequence[int] = (2, 2), layers: int = 2) -> None:
        self.producers = [producer_of(11 + rank, part, layers) for rank, part in enumerate(shares)]
        self.consumer = make_consumer()
        self.gather = Gather(self.consumer)
        self.now = 0.0
        self.finished: list[tuple[str, str, bool]] = []  # request, reason, whether vLLM waited
        self.closed: list[str] = []
        self.first: list[SampledToken | None] = []  # of the commits that requests resume on

    def talk(self) -> None:
        """Deliver until no rank has anything to say, and take in what came of it."""
        while True:
            self.gather.collect(self.now)
            if not self.consumer.outbox and not any(p.outbox for p in self.producers):
                break
            to_p, self.consumer.outbox = self.consumer.outbox, []
            for peer, message in to_p:
                self.producers[int(peer[-1])].receive("d", message, self.now)
            for rank, producer in enumerate(self.producers):
                to_d, producer.outbox = producer.outbox, []
                for _, message in to_d:
                    self.consumer.receive(f"tcp://p:{rank}", message, self.now)
        self.finished += [(one.request_id, one.reason, one.reserved) for one in self.gather.resolved]
        self.first += [one.commit.first for one in self.gather.resolved if one.commit is not None]
        self.closed += self.gather.closed
        self.gather.resolved.clear()
        self.gather.closed.clear()

    def watch(self) -> None:
        self.gather.watch("t", "d", FLOWS, 4, self.now)
        self.consumer.announce()
        self.talk()

    def prepare(self) -> None:
        self.gather.prepare("d", 1, WISH, self.now)
        self.gather.zeroed(["d"], self.now)
        self.talk()

    def start(self, rank: int, shards: int = 2) -> None:
        producer = self.producers[rank]
        producer.start(FLOWS[rank].flow_id, "p", PROMPT._replace(shards=shards), self.now)
        producer.add_source_blocks("p", [1, 2, 3])
        for layer in range(2):
            producer.ready("p", layer, 3, self.now)
        self.talk()

    def push(self, rank: int, *, ok: bool = True) -> None:
        producer = self.producers[rank]
        while push := producer.next_push(lambda _: 100):
            producer.push_begun(push, self.now)
            producer.push_done(push, ok, self.now)
        self.talk()


def reserved() -> Trio:
    """A trio that has got as far as RESERVE with both P ranks."""
    trio = Trio()
    trio.watch()
    trio.prepare()
    for rank in range(2):
        trio.start(rank)
    return trio


def test_a_request_resumes_only_when_every_rank_has_committed() -> None:
    """I4: half of the heads are no KV."""
    trio = reserved()
    assert set(trio.gather.started) == {"t"}

    trio.push(0)
    assert (trio.finished, trio.closed) == ([], [])

    trio.push(1)
    assert (trio.finished, trio.closed) == ([("d", "", True)], ["d"])
    assert trio.gather.request_of("t") is None


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_token_is_that_of_the_rank_that_sampled_it(rank: int) -> None:
    """One of them does: the last stage's."""
    trio = Trio()
    trio.watch()
    trio.prepare()
    trio.producers[rank].start(FLOWS[rank].flow_id, "p", PROMPT._replace(shards=2, samples=True), trio.now)
    trio.producers[rank].token_sampled("p", SampledToken(id=7), trio.now)
    for each in range(2):
        trio.start(each)
        trio.push(each)

    assert trio.first == [SampledToken(id=7)]


def test_one_ranks_failure_fails_the_request_and_gives_the_others_up() -> None:
    """At once, without waiting for what cannot help any more; the blocks wait until no rank can write to them (I3)."""
    trio = reserved()
    push = trio.producers[0].next_push(lambda _: 100)
    assert push is not None

    trio.producers[1].void("p", "preempted", trio.now)
    trio.talk()
    assert trio.finished == [("d", "preempted", True)]
    assert trio.closed == []

    trio.producers[0].push_done(push, True, trio.now)
    trio.talk()
    assert trio.closed == ["d"]
    assert not trio.consumer.transfers


@pytest.mark.parametrize(("shares", "flows"), [((2, 1), FLOWS), ((3,), FLOWS[:1])], ids=["two flows", "a lone flow"])
def test_a_part_that_no_rank_pushed_fails_the_request(shares: Sequence[int], flows: Sequence[Flow]) -> None:
    """I4: every commit is good in itself, and yet a layer or a head is missing."""
    trio = Trio(shares)
    trio.gather.watch("t", "d", flows, 4, trio.now)
    trio.consumer.announce()
    trio.prepare()

    for rank in range(len(flows)):
        trio.start(rank, shards=len(flows))
        trio.push(rank)

    assert trio.finished == [("d", "the prefill ranks pushed 3 of this rank's 4 parts", True)]
    assert trio.closed == ["d"]


@pytest.mark.parametrize("shards", [1, 3])
def test_ranks_that_count_each_other_differently_do_not_exchange(shards: int) -> None:
    """A node was started again with other sizes; one side has not heard of it."""
    trio = Trio()
    trio.watch()
    trio.prepare()
    trio.start(0, shards=shards)
    trio.start(1)

    trio.push(0)

    assert trio.finished == [("d", f"the prefill node divides this rank's KV by {shards}, not 2", True)]


def test_stages_without_a_common_layer_end_at_once() -> None:
    """There is nothing to push, and the prompt's computation need not be waited for."""
    trio = Trio(shares=(4, 0), layers=0)
    trio.watch()
    trio.prepare()

    trio.start(1)

    assert list(trio.consumer.transfers) == ["t/0-0"]


@pytest.mark.parametrize("flows", [FLOWS, FLOWS[:1]], ids=["two flows", "a lone flow"])
def test_a_request_that_failed_before_its_blocks_were_allocated_is_told_so(flows: Sequence[Flow]) -> None:
    """VLLM waits for what it has just allocated, so it hears of the failure, once."""
    trio = Trio()
    trio.gather.watch("t", "d", flows, 4, trio.now)
    trio.consumer.announce()
    trio.talk()
    trio.producers[0].abandon("t/0-0", "aborted before it was scheduled", trio.now)
    trio.talk()
    assert trio.finished == [("d", "aborted before it was scheduled", False)]

    trio.prepare()

    assert trio.finished[1:] == [("d", "the transfer had already failed", True)]
    assert trio.closed == ["d"]


def test_a_client_that_leaves_frees_both_ranks() -> None:
    trio = reserved()

    trio.gather.cancel("d", trio.now)
    trio.talk()

    assert trio.finished == [("d", CANCELLED, True)]
    assert trio.closed == ["d"]
    assert not any(producer.transfers for producer in trio.producers)


def test_a_quarantined_block_counts_once() -> None:
    """Whichever flows were dirty: it is lost to the pool once."""
    trio = reserved()
    assert trio.consumer.quarantined_blocks() == 0

    trio.push(0, ok=False)
    trio.push(1, ok=False)

    assert trio.consumer.quarantined_blocks() == 3


def test_a_second_request_with_the_same_id_is_refused() -> None:
    """The first one keeps the transfer."""
    trio = reserved()

    trio.gather.watch("t", "e", FLOWS, 4, trio.now)
    trio.talk()

    assert trio.finished == [("e", "another request has this transfer id", False)]
    assert trio.gather.request_of("t") == "d"


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_a_request_ends_once_and_never_half(seed: int) -> None:
    """Random failures, departures and restarts of either rank, in any order, 50 times each."""
    rng = random.Random(seed)
    for _ in range(50):
        live_through(Trio(), rng)


def live_through(trio: Trio, rng: random.Random) -> None:
    """Both ranks get ready and push, twice and in any order, while this and that goes wrong."""
    trio.watch()
    committed = [False, False]
    prepared: list[bool] = []

    def prepare() -> None:
        if not prepared:
            prepared.append(True)
            trio.prepare()

    def push(rank: int) -> None:
        ok = rng.random() < 0.9
        trio.push(rank, ok=ok)
        committed[rank] |= ok and FLOWS[rank].flow_id not in trio.producers[rank].transfers

    events: list[Callable[[], None]] = [
        *[prepare, lambda: trio.start(0), lambda: trio.start(1), lambda: push(0), lambda: push(1)] * 2,
        *[lambda: trio.gather.cancel("d", trio.now)] * (rng.random() < 0.3),
        *[lambda: trio.producers[1].void("p", "preempted", trio.now)] * (rng.random() < 0.3),
    ]
    rng.shuffle(events)
    for event in events:
        event()
        trio.talk()
    quiet_at = 200.0  # s, when every bound has passed
    while trio.now < quiet_at:
        trio.now += 0.5
        trio.consumer.tick(trio.now)
        for producer in trio.producers:
            producer.tick(trio.now)
        for engine in [*trio.consumer.fences]:
            trio.consumer.fences.remove(engine)
            trio.consumer.fenced(engine)
            trio.consumer.engine_added(0, f"{engine}+")
        trio.talk()
        if trio.closed and not trio.consumer.transfers and not any(each.transfers for each in trio.producers):
            quiet_at = min(quiet_at, trio.now + 10.0)  # nothing is left that could happen later
    waited = [one for one in trio.finished if one[2]]
    assert len(waited) == len(prepared) == 1
    assert trio.closed == ["d"]
    assert not trio.consumer.transfers
    if not waited[0][1]:
        assert committed == [True, True]
