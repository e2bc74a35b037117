"""When a decode node computes a prompt itself."""

from baton.proxy.nodes.node import Node
from baton.proxy.routing.local_prefill_policy import LocalPrefillPolicy, Verdict


def decoder(own_prompt_bytes: int = 0, slot: int = 0) -> Node:
    return Node(url="http://d", role="decode", slot=slot, own_prompt_bytes=own_prompt_bytes)


def test_only_little_new_prompt_is_computed_locally() -> None:
    node = decoder()
    local_policy = LocalPrefillPolicy(local_below_bytes=100, max_own_bytes=1000)

    assert local_policy.decide(99, node) is Verdict.LOCAL
    assert local_policy.decide(100, node) is Verdict.ELSEWHERE
    assert LocalPrefillPolicy(local_below_bytes=0, max_own_bytes=1000).decide(0, node) is Verdict.ELSEWHERE


def test_a_busy_node_takes_half_as_much_until_it_is_calm_again() -> None:
    """From half of the cap on, prompts between half and all of the threshold go elsewhere; until a quarter is left."""
    local_policy = LocalPrefillPolicy(local_below_bytes=100, max_own_bytes=1000)
    node = decoder()

    def local(new_bytes: int, own: int) -> bool:
        node.own_prompt_bytes = own
        return local_policy.decide(new_bytes, node) is Verdict.LOCAL

    assert local(80, 499)
    assert not local(80, 500)
    assert local(40, 500)
    assert not local(80, 251)
    assert local(80, 250)
    assert local(80, 499)


def test_nodes_are_busy_one_by_one() -> None:
    local_policy = LocalPrefillPolicy(local_below_bytes=100, max_own_bytes=1000)
    assert local_policy.decide(80, decoder(600, slot=1)) is Verdict.BUSY
    assert local_policy.decide(80, decoder(0, slot=2)) is Verdict.LOCAL
    assert local_policy.decide(80, decoder(300, slot=1)) is Verdict.BUSY

    local_policy.left(decoder(slot=1))

    assert local_policy.decide(80, decoder(300, slot=1)) is Verdict.LOCAL


def test_a_node_has_no_more_to_compute_than_it_may() -> None:
    """Up to the cap; but a prompt that is longer than that is taken by a node that has nothing else."""
    local_policy = LocalPrefillPolicy(local_below_bytes=0, max_own_bytes=1000)

    assert local_policy.may_compute(400, decoder(600))
    assert not local_policy.may_compute(401, decoder(600))
    assert local_policy.may_compute(5000, decoder(0))
    assert LocalPrefillPolicy(local_below_bytes=500, max_own_bytes=1000).decide(200, decoder(900)) is Verdict.BUSY
