from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from baton.contracts.configuration.schema import RolesConfig
from baton.contracts.kv_transfer import Role
from baton.deploy.roles.decision import Change, Decider, split
from baton.deploy.roles.fleet import Member

RULES = RolesConfig(interval_s=2.0, looks=3, least_load=0.5, margin=0.2, cooldown_s=30.0)
LOOK_S = RULES.interval_s


def member(role: Role, number: int = 0, **changes: Any) -> Member:
    fields: dict[str, Any] = {
        "url": f"http://{role}{number}",
        "role": role,
        "model": "m",
        "started_as": role,
        "both_ways": True,
        "prefill_load": 0.0,
        "decode_load": 0.0,
        "requests": 1,
    }
    return Member(**{**fields, **changes})


def fleet(prefill: Sequence[float | None], decode: Sequence[float | None]) -> list[Member]:
    """Nodes with these loads of their own role."""
    return [
        *(member("prefill", number, prefill_load=load) for number, load in enumerate(prefill)),
        *(member("decode", number, decode_load=load) for number, load in enumerate(decode)),
    ]


def run(decider: Decider, looks: Sequence[Sequence[Member]], begin_s: float = 0.0) -> list[tuple[int, Role]]:
    """Return which looks ordered what."""
    found = [decider.choose_change(begin_s + number * LOOK_S, members) for number, members in enumerate(looks)]
    return [(number, change.role) for number, change in enumerate(found) if change is not None]


PROMPTS = fleet([1.4], [0.2, 0.2])  # more prompts than a node computes
TOKENS = fleet([0.2, 0.2], [1.2])
CALM = fleet([0.4], [0.3, 0.3])


@pytest.mark.parametrize(("members", "role"), [(PROMPTS, "prefill"), (TOKENS, "decode")])
def test_a_load_that_lasts_brings_a_node_to_the_role_that_lacks_it(members: list[Member], role: Role) -> None:
    assert run(Decider(RULES), [members] * 4) == [(2, role)]


def test_a_change_says_why() -> None:
    decider = Decider(RULES)
    changes = [decider.choose_change(number * LOOK_S, PROMPTS) for number in range(3)]

    assert isinstance(changes[-1], Change)
    assert [changes[-1].now.worst, changes[-1].then.worst] == pytest.approx([1.4, 0.7])


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(CALM, id="calm"),
        pytest.param(fleet([0.45], [0.02, 0.02]), id="less than least_load"),
        pytest.param(fleet([1.0], [0.42, 0.42]), id="the other role would be as busy"),
        pytest.param(fleet([1.4], [0.5]), id="the only node of the role that has time"),
        pytest.param(fleet([], [0.9, 0.9]), id="no prefill node is ready"),
        pytest.param(fleet([3.0, 3.0], [1.9, 1.9]), id="both have too much"),
        pytest.param(
            [member("prefill", prefill_load=2.0), *(member("decode", n, both_ways=False) for n in (1, 2))], id="one way"
        ),
    ],
)
def test_nothing_is_changed(members: list[Member]) -> None:
    assert run(Decider(RULES), [members] * 10) == []


def test_a_load_that_swings_from_look_to_look_changes_nothing() -> None:
    assert run(Decider(RULES), [PROMPTS, PROMPTS, CALM] * 20) == []
    assert run(Decider(RULES), [PROMPTS, fleet([0.1], [0.7, 0.7])] * 30) == []


def test_a_load_that_swings_slowly_changes_a_role_once_in_a_cool_down() -> None:
    """As it would in the worst case: the load shifts back as soon as the order has been carried out."""
    decider, ordered, members = Decider(RULES), [], PROMPTS
    for number in range(150):
        if change := decider.choose_change(number * LOOK_S, members):
            ordered.append(number * LOOK_S)
            members = TOKENS if change.role == "prefill" else PROMPTS

    assert len(ordered) > 5
    assert all(later - one >= RULES.cooldown_s for one, later in pairwise(ordered))


def test_after_a_change_a_new_look_must_show_that_another_one_helps() -> None:
    decider = Decider(RolesConfig(looks=3, cooldown_s=0.0))
    found = [decider.choose_change(number * LOOK_S, PROMPTS) for number in range(7)]

    assert [number for number, change in enumerate(found) if change] == [2, 5]


def test_a_change_by_others_begins_a_cool_down() -> None:
    decider = Decider(RULES)
    found = [decider.choose_change(number * LOOK_S, PROMPTS, unchanged_s=number * LOOK_S) for number in range(20)]

    assert [number for number, change in enumerate(found) if change] == [15]


def test_changes_in_an_hour_are_bounded() -> None:
    decider = Decider(RolesConfig(looks=1, cooldown_s=0.0, max_changes_per_hour=2))

    assert len(run(decider, [PROMPTS] * 100)) == 2
    assert len(run(decider, [PROMPTS] * 100, begin_s=3600.0)) == 2


def test_silence_begins_the_looks_again() -> None:
    """It is no load, and what was seen before it is not what is seen after it."""
    silence: list[Member] = []

    assert run(Decider(RULES), [PROMPTS, PROMPTS, silence, PROMPTS, PROMPTS, PROMPTS]) == [(5, "prefill")]


def test_what_is_not_known_is_no_load() -> None:
    """A role that has requests and no figures; without requests it has nothing to do."""
    assert run(Decider(RULES), [fleet([1.4], [None, None])] * 9) == []
    idle = [member("prefill", prefill_load=1.4), *(member("decode", n, decode_load=None, requests=0) for n in (0, 1))]
    assert run(Decider(RULES), [idle] * 3) == [(2, "prefill")]


def test_a_node_without_figures_counts_as_the_others_of_its_role() -> None:
    found = split([member("prefill", prefill_load=0.6), member("prefill", 1, prefill_load=None)], [member("decode")])

    assert found is not None
    assert found.prefill_load == pytest.approx(1.2)


def test_work_that_nodes_of_the_other_role_do_counts() -> None:
    """Placement gives decode nodes prompts, and prefill nodes answers."""
    found = split(
        [member("prefill", prefill_load=1.0, decode_load=0.1)], [member("decode", prefill_load=0.4, decode_load=0.2)]
    )

    assert found is not None
    assert [found.prefill_load, found.decode_load] == pytest.approx([1.4, 0.3])


def test_the_node_that_costs_least_is_changed() -> None:
    """The one that was started in that role, with flags for it; else the one with the least requests."""
    prefill = member("prefill", prefill_load=1.4)
    busy, calm = member("decode", 1, requests=5), member("decode", 2, requests=3)
    own = member("decode", 3, requests=9, started_as="prefill")

    for decode, best in (([busy, calm], calm), ([busy, calm, own], own)):
        decider = Decider(RolesConfig(looks=1))
        change = decider.choose_change(0.0, [prefill, *decode])
        assert change is not None
        assert change.url == best.url


def test_models_have_nodes_of_their_own() -> None:
    """The one that gains most goes first, the other after the cool-down; no node serves for another model."""
    other = [
        member(m.role, 7 + n, model="other", prefill_load=m.prefill_load)
        for n, m in enumerate(fleet([1.9], [0.1, 0.1]))
    ]
    decider = Decider(RULES)
    found = [decider.choose_change(number * LOOK_S, [*PROMPTS, *other]) for number in range(20)]

    assert [change.model for change in found if change] == ["other", "other"]
    assert (
        run(Decider(RULES), [[*fleet([1.4], [0.1]), *(member("decode", n, model="other") for n in (8, 9))]] * 9) == []
    )
