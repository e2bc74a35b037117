"""One engine's scheduler sides over one block pool, and transfers of an answer's KV between two of them."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from baton.contracts.kv_transfer import Role
from baton.kv_connector.handoff.metadata import DecodeReport, PrefillStep
from baton.kv_connector.scheduler_side.answer_tokens import ModelLimits
from baton.kv_connector.scheduler_side.prefill import PrefillScheduler
from baton.kv_connector.scheduler_side.sides import SchedulerSides
from baton.kv_connector.scheduler_side.stalls import Stalls
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, FakePool, MakeDecode, request, step_output

PROMPT, ANSWER = 40, (101, 102, 103, 104, 105, 106, 107, 108, 109)  # tokens
SENT = PROMPT + len(ANSWER) - 1
OTHER: dict[str, Any] = {"request_id": "r2", "transfer_id": "b" * 32}


@pytest.fixture
def sides(make_decode: MakeDecode) -> SchedulerSides:
    """A decode node's, which also sends."""
    prefill = PrefillScheduler(SECRET, BLOCK_TOKENS, answers=ModelLimits(200, SENT + 1))
    made = SchedulerSides("decode", prefill, make_decode(is_bound=False, sampling="s", vocab_size=200))
    made.bind_pool(FakePool(33))
    return made


def prefill_step(sides: SchedulerSides, **step: Any) -> PrefillStep:
    """What the workers are told of a step, as far as it is about what is sent."""
    taken = sides.take_step(step_output(**step)).prefill
    assert taken is not None
    return taken


def allocate(sides: SchedulerSides, received: Any, blocks: int, tokens: int) -> None:
    """Give a request its blocks, of which so many tokens are to come."""
    assert sides.decode is not None
    pool: Any = sides.decode._ledger.pool
    sides.allocated(received, [pool.allocate(blocks)], tokens)


def sent_request(answer: tuple[int, ...] = ANSWER) -> Any:
    """A prefill leg with tokens, whose request can be lengthened as vLLM's."""
    made = request("prefill", PROMPT, start=(answer,))
    return Lengthened(made)


class Lengthened(SimpleNamespace):
    """What vLLM keeps of a prompt in several places."""

    def __init__(self, made: Any) -> None:
        super().__init__(
            **vars(made),
            num_prompt_tokens=PROMPT,
            _all_token_ids=list(made.prompt_token_ids),
            hashed=0,
            block_hashes=[b"1", b"2", b"3"],
        )

    def update_block_hashes(self) -> None:
        self.hashed = len(self._all_token_ids)


def test_each_request_goes_to_the_side_that_its_parameters_name(sides: SchedulerSides) -> None:
    """One that sends, one that receives, and an ordinary one. The node's own side is shown first."""
    ordinary = request("decode", 40, request_id="r3")
    ordinary.kv_transfer_params = None
    for each in (request("prefill", 40), request("decode", 40, **OTHER), ordinary):
        sides.add_request(each)

    step = sides.take_step(step_output(new=[("r1", [5, 6, 7], 0, 40), ("r3", [8, 9, 10], 0, 40)]))

    assert step.prefill is not None
    assert step.decode is not None
    assert [started.request_id for started in step.prefill.started] == ["r1"]
    assert [watched.request_id for watched in step.decode.watched] == ["r2"]
    snapshot = sides.snapshot()
    assert snapshot["both_ways"] is True
    shown = [(each["request_id"], each["role"]) for each in snapshot["transfers"]]
    assert shown == [("r2", "decode"), ("r1", "prefill")]
    assert (snapshot["totals"]["transfers"], snapshot["reverse"]["totals"]["transfers"]) == (1, 1)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_node_with_one_side_says_so(make_decode: MakeDecode, role: Role) -> None:
    """And how full its pool is, whose null block does not count."""
    if role == "prefill":
        made = SchedulerSides(role, PrefillScheduler(SECRET, BLOCK_TOKENS), None)
    else:
        made = SchedulerSides(role, None, make_decode(is_bound=False))
    pool = FakePool(33)
    made.bind_pool(pool)
    pool.allocate(2)
    made.addresses.append("tcp://here")

    said = made.snapshot()

    assert (said["num_blocks"], said["free_blocks"], said["control_addresses"]) == (32, 30, ["tcp://here"])
    assert (said["both_ways"], said["totals"]["integrity_findings"], "reverse" in said) == (False, 0, False)


def test_a_side_that_receives_is_closed_with_its_node() -> None:
    decode = Mock()

    SchedulerSides("decode", None, decode).close()

    decode.close.assert_called_once_with()


def test_parameters_that_are_not_signed_are_refused_once(sides: SchedulerSides) -> None:
    forged = request("prefill", 40)
    forged.kv_transfer_params["baton"]["sig"] = "0" * 64

    sides.add_request(forged)

    assert sides.snapshot()["refused"] == {"bad_signature": 1}


def test_blocks_of_a_prompt_that_is_held_and_of_a_reservation_are_both_accounted_for(sides: SchedulerSides) -> None:
    """And the check of the pool counts each step once, and forgets a request with its blocks."""
    sent, received = request("prefill", 40), request("decode", 40, **OTHER)
    for each in (sent, received):
        sides.add_request(each)
    allocate(sides, received, 3, 40)
    sides.take_step(step_output(new=[("r1", [5, 6, 7], 0, 40)]))

    assert sides.finish_request(sent, aborted=False) is True
    assert sides.finish_request(received, aborted=True) is False
    assert sides.has_open_reservations()
    assert sides._reservations() == {"r2": [1, 2, 3]}
    assert sides.integrity._live == {"r1"}
    assert sides.integrity._begun == 1

    sides.update({"r1"}, DecodeReport(closed=["r2"]), set())
    assert not sides.integrity._live
    assert not sides.has_open_reservations()
    assert sides.snapshot()["transfers"] == []


def test_a_prompt_that_ends_while_it_is_preempted_is_not_held(sides: SchedulerSides) -> None:
    """Its token was in flight, and is delivered; its blocks are another's by then (I2)."""
    sent = request("prefill", 40)
    sides.add_request(sent)
    prefill_step(sides, new=[("r1", [5, 6, 7], 0, 40)])

    assert prefill_step(sides, preempted={"r1"}).voids == [("r1", "preempted")]
    assert sides.finish_request(sent, aborted=False) is False
    assert (prefill_step(sides).holds, sides.snapshot()["transfers"]) == ([], [])


@pytest.mark.parametrize(("role", "answer"), [("prefill", (None, False)), ("decode", (SENT, True))])
def test_a_prefill_node_waits_with_an_answer_until_there_is_much_room(
    make_decode: MakeDecode, role: Role, answer: tuple[int | None, bool]
) -> None:
    """VLLM would admit no prompt behind one that it has no blocks for."""
    transfer = {"both_ways": True, "early_reserve_share": 0.9}
    side = make_decode(transfer=transfer, role=role, sampling="s", vocab_size=200)
    received = request("decode", PROMPT, start=(ANSWER,), start_sent=True, **OTHER)
    received.structured_output_request = None
    side.add_request(received)
    side.update(DecodeReport(started={OTHER["transfer_id"]}), set())

    assert side.match(received, 0) == answer


@pytest.mark.parametrize(
    ("taken", "expected"), [(6, [[], ["p2", "p1"], ["p0"], []]), (5, [[], ["p2"], ["p1"], ["p0"]])]
)
def test_a_node_that_stands_still_gives_up_prompts_that_have_not_been_fetched(
    sides: SchedulerSides, monkeypatch: pytest.MonkeyPatch, taken: int, expected: list[list[str]]
) -> None:
    """What it is to receive has no room, and the node that holds it may lack room for what is held here. Each is given up once."""
    for number in range(3):
        held = request("prefill", 40, request_id=f"p{number}", transfer_id=f"{number}" * 32)
        sides.add_request(held)
        prefill_step(sides, new=[(f"p{number}", [5, 6, 7], 0, 40)])
        sides.finish_request(held, aborted=False)
    received = request("decode", 30 * BLOCK_TOKENS, **OTHER)
    sides.add_request(received)
    assert sides.decode is not None
    sides.decode.update(DecodeReport(started={OTHER["transfer_id"]}), set())
    pool: Any = sides.decode._ledger.pool
    pool.allocate(taken)  # the others of 32 are free; a prompt has 3
    monkeypatch.setattr(sides.decode, "_stalls", Stalls(0.0))
    given_up = []
    for _ in range(4):
        sides.match(received, 0)
        given_up.append(prefill_step(sides).unfetched)

    assert given_up == expected


@pytest.mark.parametrize("answer", [ANSWER, ANSWER[:2]])
def test_the_source_computes_the_answer_behind_its_prompt(sides: SchedulerSides, answer: tuple[int, ...]) -> None:
    """All but the last token, as part of the prompt, whatever the client asks for. The server's own list may be shared, and stays."""
    sent = sent_request(answer)
    servers, length = sent.prompt_token_ids, PROMPT + len(answer) - 1
    sent.prefill_stats = SimpleNamespace(num_cached_tokens=length - 1)
    sides.add_request(sent)
    assert len(servers) == PROMPT

    step = prefill_step(sides, new=[("r1", [5, 6, 7], 32, length - 32)])

    assert sent.prompt_token_ids == sent._all_token_ids == [*range(PROMPT), *answer[:-1]]
    assert (sent.num_prompt_tokens, sent.hashed, sent.max_tokens) == (length, length, 1)
    (started,) = step.started
    assert (started.prompt.tokens, started.prompt.cached_tokens, started.prompt.is_answer) == (length, 32, True)
    assert sent.prefill_stats.num_cached_tokens == PROMPT  # as billed: the server knows no longer prompt
    assert [progress.ready_blocks for progress in step.progress] == [3]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((*ANSWER, 1), "the answer's tokens do not fit behind its prompt"),
        ((200, 1), "the model has no such token"),
    ],
)
def test_tokens_that_cannot_follow_the_prompt_give_the_transfer_up(
    sides: SchedulerSides, answer: tuple[int, ...], reason: str
) -> None:
    """The decode node computes them itself."""
    sides.add_request(request("prefill", PROMPT, start=(answer,)))

    assert [each.reason for each in prefill_step(sides).abandoned] == [reason]


def test_a_prefill_node_that_does_not_receive_sends_no_answer() -> None:
    """It would not be asked to; it says why, and computes the prompt alone."""
    side = PrefillScheduler(SECRET, BLOCK_TOKENS)
    sent = request("prefill", PROMPT, start=(ANSWER,))
    side.add_request(sent)

    (abandoned,) = side.take_step(step_output()).abandoned

    assert "transfer.both_ways is off" in abandoned.reason
    assert len(sent.prompt_token_ids) == PROMPT


@pytest.mark.parametrize(("sent", "tokens"), [(True, SENT), (False, PROMPT)])
def test_the_destination_asks_for_what_the_source_sends(sides: SchedulerSides, *, sent: bool, tokens: int) -> None:
    """Without the flag the source has the prompt alone. Both sides name by one hash what is sent."""
    received = request("decode", PROMPT, start=(ANSWER,), start_sent=sent)
    received.structured_output_request = None
    sides.add_request(received)

    assert sides.match(received, 16) == (tokens - 16, True)

    allocate(sides, received, 4, tokens - 16)
    step = sides.take_step(step_output()).decode
    assert step is not None
    (reserved,) = step.reserved
    assert (reserved.wish.tokens, reserved.wish.from_token) == (tokens, 16)
    assert len(reserved.wish.blocks[0]) == -(-tokens // BLOCK_TOKENS) - 1

    source = PrefillScheduler(SECRET, BLOCK_TOKENS, answers=ModelLimits(200, SENT + 1))
    source.bind_pool(FakePool(33))
    source.add_request(sent_request() if sent else request("prefill", PROMPT))
    (started,) = source.take_step(step_output(new=[("r1", [5, 6, 7], 0, tokens)])).started
    assert started.prompt.prompt_hash == reserved.wish.prompt_hash
