import pytest

from baton.proxy.errors import UnavailableError
from baton.proxy.nodes.node import State
from baton.proxy.passthrough.choose import NotServedError, nodes_for
from tests.unit.proxy.members import node


def test_the_least_busy_decode_node_that_has_the_route_comes_first() -> None:
    """Prefill nodes come last: their time is the first token's."""
    busy, free, other = (node("decode", routes=["/tokenize"]) for _ in range(3))
    lacks, maker = node("decode", routes=["/v1/embeddings"]), node("prefill", routes=["/tokenize"])
    busy.begin(10)
    other.lose(State.DOWN, "gone")

    assert nodes_for("/tokenize", "m", [busy, free, lacks, other], [maker]) == [free, busy, maker]


def test_a_node_that_serves_the_model_is_preferred() -> None:
    mine, other = node("decode", routes=["/score"]), node("decode", routes=["/score"], served_models=["other"])

    assert nodes_for("/score", "other", [mine, other], []) == [other]
    assert nodes_for("/score", "unheard of", [mine, other], []) == [mine, other]


def test_a_node_that_does_not_say_is_asked_if_it_decodes() -> None:
    """One of an older version."""
    taker = node("decode")

    assert nodes_for("/tokenize", "m", [taker], [node("prefill")]) == [taker]


def test_a_route_without_a_node_is_not_found() -> None:
    """It is another matter when no node is ready."""
    with pytest.raises(NotServedError, match="/v1/embeddings"):
        nodes_for("/v1/embeddings", "m", [node("decode", routes=["/tokenize"])], [])
    with pytest.raises(UnavailableError):
        nodes_for("/v1/embeddings", "m", [], [])
