"""The nodes of a request's first plan, by who is ready and what each has of its prompt."""

from typing import Any

import msgspec
import pytest

from baton.contracts.http import LOCAL
from baton.proxy.errors import NoRoomError, UnavailableError, UnknownModelError
from baton.proxy.nodes.node import Node, State
from baton.proxy.planning import reasons
from baton.proxy.planning.planner import key_of
from baton.proxy.planning.plans import DisaggregatedPlan, LocalPlan
from baton.proxy.planning.retry_policy import History
from baton.proxy.request import eligibility
from baton.proxy.request.endpoints import COMPLETIONS
from baton.proxy.request.parse import parse
from baton.proxy.routing.policies import PrefixAffinity
from baton.proxy.routing.prefixes import CHUNK_BYTES, STEP_BYTES
from tests.unit.proxy.members import BFLOAT16, node, request
from tests.unit.proxy.planning.planners import OTHER_PROTOCOL, SCORED, WIDE, pair, planner


def test_a_plain_request_gets_a_pair() -> None:
    """With both sides ready, each plan has two nodes and an id of its own; ranks of a prefill node take turns."""
    planned = planner([node("prefill", **WIDE)], [node("decode")])

    chosen = [pair(planned) for _ in range(4)]

    assert len({each.transfer_id for each in chosen}) == 4
    assert {(each.rank, each.control_address) for each in chosen} == {(0, "tcp://p:1"), (1, "tcp://p:2")}


@pytest.mark.parametrize(
    ("prefill", "decode", "label"),
    [
        ([], {}, "no_prefill_configured"),
        ([{"state": "starting"}], {}, "no_prefill_ready"),
        ([{"control_addresses": []}], {}, "no_prefill_ready"),
        ([{"served_models": ["another"]}], {}, "no_prefill_ready"),
        ([{"fingerprint": BFLOAT16}], {}, "no_prefill_matches"),
        ([{"fingerprint": None}], {}, "no_prefill_matches"),
        ([{"versions": OTHER_PROTOCOL}], {}, "no_prefill_speaks"),
        ([{"versions": OTHER_PROTOCOL}, {"fingerprint": BFLOAT16}], {}, "no_prefill_speaks"),
        # They understand each other, and would refuse this proxy's parameters.
        ([{"versions": OTHER_PROTOCOL}], {"versions": OTHER_PROTOCOL}, "no_prefill_speaks"),
    ],
)
def test_without_a_usable_prefill_node_the_policy_decides(
    prefill: list[dict[str, Any]], decode: dict[str, Any], label: str
) -> None:
    """`decode_local` computes on the decode node and says why; `refuse` says the same as a 503."""
    nodes = [node("prefill", **each) for each in prefill], [node("decode", **decode)]
    chosen = planner(*nodes).first(request())

    assert isinstance(chosen, LocalPlan)
    assert (chosen.path, chosen.label) == (LOCAL, label)
    with pytest.raises(UnavailableError, match=chosen.reason):
        planner(*nodes, "refuse").first(request())


@pytest.mark.parametrize("difference", [{"fingerprint": BFLOAT16}, {"versions": OTHER_PROTOCOL}])
def test_only_nodes_that_understand_each_other_are_paired(difference: dict[str, Any]) -> None:
    """Half-way through an upgrade requests go to the pairs that do, although others are idle."""
    maker, taker = node("prefill"), node("decode")
    planned = planner([node("prefill", versions=OTHER_PROTOCOL), maker], [node("decode", **difference), taker])

    chosen = [pair(planned) for _ in range(4)]

    assert {(each.prefill, each.decode) for each in chosen} == {(maker, taker)}


def test_no_decode_node_is_503_and_an_unknown_model_404() -> None:
    """A model that a lost node serves is unavailable; one that no node ever served does not exist."""
    lost = node("decode")
    lost.lose(State.DOWN, "gone")
    for decode in ([lost], [lost, node("decode", served_models=["another"])]):
        with pytest.raises(UnavailableError):
            planner([], decode).first(request())
    with pytest.raises(UnknownModelError):
        planner([], [node("decode")]).first(request({"model": "unheard of"}))


def test_a_prompt_goes_where_its_beginning_went() -> None:
    """The prefill node that has seen a conversation's earlier turns gets the next one; another adapter's it has not seen."""
    prefill = [node("prefill", f"http://p{slot}", slot=slot) for slot in range(4)]
    made = planner(prefill, [node("decode", slot=9)])
    story = "x" * 10_000

    def choose(prompt: str) -> Node:
        chosen = made.first(request({"prompt": prompt}))
        assert isinstance(chosen, DisaggregatedPlan)
        return chosen.prefill

    first = choose(story)

    assert {choose(f"{story} and then {turn}") for turn in range(9)} == {first}
    assert len({choose(f"{turn} " * 5_000) for turn in range(9)}) > 1


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_prompt_that_is_little_or_mostly_known_is_computed_where_it_is_decoded(attempts: int) -> None:
    """What counts is what that decode node lacks, as far as its policy knows."""
    made = planner(
        [node("prefill")], [node("decode")], decode_policy=PrefixAffinity(), local_below_bytes=3 * CHUNK_BYTES
    )
    story = "x" * (8 * CHUNK_BYTES)

    chosen = [
        made.first(request({"prompt": prompt}), History(attempts=attempts))
        for prompt in ("short", story, story + " and then?", "y" + story)
    ]

    assert [type(each) for each in chosen] == [LocalPlan, DisaggregatedPlan, LocalPlan, DisaggregatedPlan]
    assert isinstance(chosen[2], LocalPlan)
    assert (chosen[2].reason, chosen[2].label) == (reasons.SHORT, "short")
    assert chosen[2].work_bytes < CHUNK_BYTES


@pytest.mark.parametrize(("fields", "is_new"), [({}, False), (SCORED, True)])
def test_what_a_decode_node_has_of_a_prompt_that_it_computed_counts_unless_the_prompt_is_scored(
    fields: dict[str, Any], *, is_new: bool
) -> None:
    """Log probabilities of a prompt skip the prefix cache."""
    made = planner([node("prefill")], [node("decode")], decode_policy=PrefixAffinity(), local_below_bytes=1 << 20)
    known_bytes = 9 * CHUNK_BYTES + 3 * STEP_BYTES
    asked = request({"prompt": "x" * known_bytes, **fields})

    plans = [made.first(asked) for _ in range(2)]

    rest = asked.prompt_bytes - known_bytes
    assert [plan.work_bytes for plan in plans] == [asked.prompt_bytes, asked.prompt_bytes if is_new else rest]


def test_every_reason_has_a_label() -> None:
    sentences = {value for name, value in vars(eligibility).items() if name.isupper() and isinstance(value, str)}

    assert sentences <= set(reasons.LABELS)
    assert len(set(reasons.LABELS.values())) == len(reasons.LABELS)


def test_without_prefill_nodes_a_full_decode_node_is_passed_by() -> None:
    full, free = node("decode", "http://d0"), node("decode", "http://d1", slot=1)
    made = planner([], [full, free], max_own_bytes=1000)
    full.own_prompt_bytes = 900

    assert {made.first(request({"prompt": "x" * 200})).decode.url for _ in range(4)} == {free.url}
    free.own_prompt_bytes = 900
    with pytest.raises(NoRoomError):
        made.first(request({"prompt": "x" * 200}))
    assert made.first(request({"prompt": "x" * 50})).decode in (full, free)
    assert isinstance(made.first(request({"prompt": "x" * 200, "prompt_logprobs": 1})), LocalPlan)


@pytest.mark.parametrize(
    ("headers", "body", "key"),
    [
        ([(b"x-session-id", b"s1")], {"user": "u"}, "s1"),
        ([], {"user": "u"}, '"u"'),
        ([], {"user": None}, ""),
        ([], {}, ""),
    ],
)
def test_a_session_is_named_by_a_header_or_by_its_user(
    headers: list[tuple[bytes, bytes]], body: dict[str, Any], key: str
) -> None:
    """What `consistent_hash` keeps on one node."""
    asked = parse(COMPLETIONS, "id", headers, msgspec.json.encode({"model": "m", "prompt": "x", **body}))

    assert key_of(asked, "x-session-id") == key
