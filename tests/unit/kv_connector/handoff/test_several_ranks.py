"""One D rank whose request comes from two P ranks, and one P rank that feeds two D ranks: flows, joined."""

import random
from collections.abc import Callable, Sequence

import pytest

from baton.kv_connector.handoff.consumer import CANCELLED
from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.gather import Flow, Gather
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.pushing import TransferLayout
from baton.kv_connector.protocol.messages import Fail, Message, SampledToken
from tests.unit.kv_connector.handoff.machines import PROMPT, WISH, hello, make_consumer, make_producer, reservation

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
        while push := producer.next_push(100):
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
    push = trio.producers[0].next_push(100)
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


# --- P's side ---


def fan_out() -> tuple[Producer, FanOut]:
    """A P rank that feeds two D ranks."""
    producer = make_producer()
    made = FanOut(producer)
    made.start("t", "p", [("t/0-0", 1), ("t/0-1", 1)], PROMPT._replace(samples=True), 0.0)
    made.add_source_blocks("p", [1, 2, 3])
    return producer, made


def test_a_prompt_is_released_when_all_of_its_readers_let_go() -> None:
    producer, made = fan_out()
    made.hold("p", 0.0)
    assert made.released == []

    producer.cancel("t/0-0", 0.0)
    made.collect()
    assert made.released == []

    producer.cancel("t/0-1", 0.0)
    made.collect()
    assert made.released == ["p"]
    assert (made._flows, made._request_of, made._holding) == ({}, {}, {}), "nothing is kept of it"


def test_nothing_is_kept_of_a_prompt_that_is_taken_away() -> None:
    """No request holds its blocks: none will be released."""
    _, made = fan_out()

    made.void("p", "preempted", 0.0)

    assert (made._flows, made._request_of) == ({}, {})


def test_what_the_device_wrote_is_ready_for_all_readers() -> None:
    """Each flow counts for itself."""
    producer, made = fan_out()

    made.ready("p", 0, 2, 0.0)
    made.token_sampled("p", SampledToken(id=7), 0.0)

    assert [transfer.first for transfer in producer.transfers.values()] == [SampledToken(id=7)] * 2
    assert [transfer.ready for transfer in producer.transfers.values()] == [[2, 0], [2, 0]]
    assert [transfer.source_blocks for transfer in producer.transfers.values()] == [[[1, 2, 3]], [[1, 2, 3]]]


def test_a_rank_that_no_decode_rank_reads_lets_go_at_once() -> None:
    made = FanOut(make_producer())
    made.start("t", "p", [], PROMPT, 0.0)

    made.hold("p", 0.0)

    assert made.released == ["p"]


def test_a_lone_flow_has_the_names_of_its_request() -> None:
    """As earlier versions call them."""
    producer = make_producer()

    FanOut(producer).start("t", "p", [("t", 1)], PROMPT, 0.0)

    assert [(each.transfer_id, each.request_id) for each in producer.transfers.values()] == [("t", "p")]


def test_a_cancel_before_the_prompt_starts_reaches_every_decode_rank() -> None:
    """Those that have asked already, and those that ask later. A late prompt is let go at once."""
    producer = make_producer()
    made = FanOut(producer)
    for number, flow in enumerate(("t/0-0", "t/0-1")):
        if number == 1:
            assert made.cancel("t", 0.0) == 1
        incarnation = 21 + number
        producer.receive("d", Message(incarnation, 0, 1, hello("d")), 0.0)
        producer.receive("d", Message(incarnation, 11, 2, reservation(flow)), 0.0)

    failed = [message.body.transfer_id for _, message in producer.outbox if isinstance(message.body, Fail)]
    assert failed == ["t/0-0", "t/0-1"]
    made.start("t", "p", [("t/0-0", 1), ("t/0-1", 1)], PROMPT, 0.0)
    made.hold("p", 0.0)
    made.collect()
    assert made.released == ["p"]
    assert not producer.transfers


@pytest.mark.parametrize("how", ["void", "give up", "cancel"])
def test_void_and_cancel_end_all_flows(how: str) -> None:
    """Nothing of them is left. What is held is released: vLLM waits for that, though the device may have failed."""
    producer, made = fan_out()
    made.hold("p", 0.0)

    if how == "void":
        made.void("p", "the device failed", 0.0)
    elif how == "give up":
        made.give_up("p", "blocks are wanted", 0.0)
    else:
        assert made.cancel("t", 0.0) == 2
    made.collect()

    assert not producer.transfers
    assert made.released == ["p"]


def test_a_transfer_is_open_until_its_last_flow_ends() -> None:
    """Those who remember it by its id may forget it then."""
    producer, made = fan_out()
    assert made.is_open("t")

    assert not made.ended("t", "t/0-1")
    assert made.is_open("t")
    assert made.ended("t", "t/0-0")
    assert not made.is_open("t")

    producer.cancel("u/0-0", 0.0)
    made.start("u", "q", [("u/0-0", 1)], PROMPT, 0.0)
    assert not made.is_open("u")
