"""One prefill rank that feeds two decode ranks."""

import pytest

from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.protocol.messages import Fail, Message, SampledToken
from tests.unit.kv_connector.handoff.machines import PROMPT, hello, make_producer, reservation


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
