"""A policy among members that come and go."""

from unittest.mock import Mock, call

from baton.proxy.routing.policies import LeastLoad, PrefixAffinity, Work
from baton.proxy.routing.prefixes import CHUNK_BYTES
from baton.proxy.routing.router import Router, choice_of
from tests.unit.proxy.members import node


def test_a_decode_node_is_loaded_by_sequences_and_a_prefill_node_by_prompts() -> None:
    """Many short answers weigh more on a decode node than one long prompt; on a prefill node the prompt does."""
    for role, busiest in (("decode", "many"), ("prefill", "long")):
        nodes = {name: node(role, name, slot) for slot, name in enumerate(("many", "long"))}  # type: ignore[arg-type]
        for _ in range(5):
            nodes["many"].begin(100)
        nodes["long"].begin(50_000)

        assert max(nodes.values(), key=lambda one: one.load) is nodes[busiest]
        assert Router(LeastLoad()).choose(Work(1, 0), list(nodes.values())) is not nodes[busiest]


def test_a_prompt_that_a_node_has_whole_takes_something() -> None:
    """0 would mean that it is not known."""
    assert choice_of(node("prefill"), 0, 4096).work_bytes == 1


def test_what_a_node_had_is_forgotten_when_it_restarts_or_leaves() -> None:
    """Its cache is empty, and its slot may be another's."""
    work = Work(9 * CHUNK_BYTES, 0, range(9))
    for forget in ("restarted", "left"):
        router = Router(PrefixAffinity())
        nodes = [node("prefill", f"http://p{slot}", slot) for slot in range(2)]
        first = router.choose(work, nodes)
        other = next(one for one in nodes if one is not first)
        router.choose(Work(9 * CHUNK_BYTES, 1, range(50, 59)), [other])
        assert router.preview(work, nodes) == (first, 0, 1, work.prompt_bytes)
        assert router.choose(work, nodes) is first

        getattr(router, forget)(first)
        first.begin(1)

        assert router.choose(work, nodes) is other


def test_changes_of_nodes_of_the_other_role_are_not_heard() -> None:
    """Both roles' routers have one index, which each would go through."""
    policy = Mock()
    router, other = Router(policy, "prefill"), node("decode", "http://d", 1)
    router.left(other)
    router.restarted(other)
    assert not policy.forget.called

    router.left(node("prefill", "http://p", 2))
    router.restarted(node("prefill", "http://q", 3))
    assert policy.forget.mock_calls == [call(2), call(3)]


def test_sets_of_nodes_are_kept_within_a_bound() -> None:
    router = Router(LeastLoad())
    for slot in range(300):
        router.choose(Work(1, 0), (node("prefill"), node("prefill", slot=slot)))

    assert all(0 < len(kept) <= 64 for kept in (router._candidates, router._recent))


def test_a_list_that_changes_is_another_set_of_nodes() -> None:
    """A tuple cannot change, and is put in order once."""
    nodes = [node("decode", f"http://n{slot}", slot) for slot in range(3)]
    router, some = Router(LeastLoad()), nodes[:2]
    for _ in range(4):
        assert router.choose(Work(1, 0), some) in some
    some[:] = nodes[1:]

    chosen = {router.choose(Work(1, 0), some).slot for _ in range(4)}

    assert chosen == {1, 2}
    kept = tuple(nodes)
    assert router._in_order(kept) is router._in_order(kept)
