"""Which base model a name belongs to: an adapter is never answered by two of them."""

import pytest

from baton.contracts.node_info import Adapter
from baton.proxy.errors import BadRequestError, UnknownModelError
from baton.proxy.nodes import base_models
from baton.proxy.nodes.node import Node, State
from baton.proxy.nodes.readiness import models
from baton.proxy.passthrough.choose import nodes_for
from tests.unit.proxy.members import node, request
from tests.unit.proxy.planning.planners import planner


def serving(base: str, *adapters: str, also: tuple[str, ...] = ()) -> Node:
    named = [Adapter(name=name, root=f"/adapters/{name}", parent=base) for name in adapters]
    names = [base, *also, *adapters]
    return node("decode", model=f"/models/{base}", served_models=names, adapters=named)


ONE, OTHER = serving("one", "poet"), serving("other")
UNKNOWN = Node(url="http://n", role="decode")


def test_nodes_with_a_name_in_common_serve_one_base_model() -> None:
    """In whatever order they name it, and however they are linked; an adapter is no name of it."""
    nodes = [serving("a", also=("x",)), serving("x", also=("b",)), serving("c", "b-adapter"), serving("b")]

    assert sorted(map(sorted, base_models.bases(nodes))) == [["a", "b", "x"], ["c"]]


def test_the_first_name_is_the_base_models_where_a_node_does_not_say() -> None:
    silent = node("decode", served_models=["a", "b", "c"], adapters=None)

    assert (silent.base_names, silent.adapter_names) == (frozenset("a"), frozenset("bc"))


def test_an_adapter_is_loaded_on_the_nodes_of_its_base_model() -> None:
    """Without a name on those of the only one; where several are served, only with a name."""
    assert base_models.nodes_to_load([ONE, OTHER, UNKNOWN], "new", "other") == [OTHER]
    assert base_models.nodes_to_load([ONE, ONE, UNKNOWN], "new", "") == [ONE, ONE]
    assert base_models.nodes_to_load([ONE, OTHER], "poet", "one") == [ONE]  # once more
    with pytest.raises(BadRequestError, match="'one', 'other'") as raised:
        base_models.nodes_to_load([ONE, OTHER], "new", "")
    with pytest.raises(UnknownModelError, match="'poet'") as unknown:
        base_models.nodes_to_load([ONE, OTHER], "new", "poet")
    assert raised.value.param == unknown.value.param == "base_model_name"


def test_an_unknown_model_is_refused_in_vllms_words() -> None:
    """With the names of all base models; paths are left out, as vLLM does."""
    found = base_models.unknown_model("other?", [ONE, OTHER, UNKNOWN, serving("/home/me/weights")])

    assert str(found) == "The model `other?` does not exist. Valid aliases: one, other, <path>"
    assert (found.kind, found.param) == ("NotFoundError", "model")


@pytest.mark.parametrize("name", ["poet", "one"])
def test_a_name_of_another_base_model_is_not_given_to_an_adapter(name: str) -> None:
    """Requests could not be told apart."""
    with pytest.raises(BadRequestError, match="'one'"):
        base_models.nodes_to_load([ONE, OTHER], name, "other")


def test_an_adapter_is_unloaded_where_it_is() -> None:
    """From all nodes of that base model; the base model must be named where two have such an adapter, or none."""
    bare = serving("one")
    both = [ONE, bare, serving("other", "poet")]

    assert base_models.nodes_to_unload([ONE, bare, OTHER], "poet", "") == [ONE, bare]
    assert base_models.nodes_to_unload(both, "poet", "other") == both[2:]
    assert base_models.nodes_to_unload([ONE, OTHER], "poet", "other") == [OTHER]
    for nodes, adapter in ((both, "poet"), ([ONE, OTHER], "unheard of")):
        with pytest.raises(BadRequestError):
            base_models.nodes_to_unload(nodes, adapter, "")


def test_a_name_that_two_base_models_have_is_refused_on_every_route() -> None:
    """Neither base model is right; an adapter that one has, and other names of one base model, are."""
    decode = [ONE, serving("other", "poet"), serving("third", "seer", also=("3",))]
    asked = planner([], decode)

    with pytest.raises(BadRequestError, match="'one', 'other'"):
        asked.first(request({"model": "poet"}))
    for nodes in (decode, decode[:2]):
        with pytest.raises(BadRequestError, match="ambiguous") as raised:
            nodes_for("/tokenize", "poet", nodes, [])
        assert raised.value.param == "model"
    for name in ("seer", "3"):
        assert asked.first(request({"model": name})).decode is decode[2]
        assert nodes_for("/tokenize", name, decode, []) == [decode[2]]


def test_a_request_without_a_model_is_refused_where_several_are_served() -> None:
    """Also while the nodes of all but one are away, and for what one node serves whole; an adapter is no second model."""
    assert planner([], [ONE]).first(request({"model": ""})).decode is ONE
    away = serving("other")
    away.lose(State.DOWN, "gone")
    for nodes in ([ONE, OTHER], [ONE, away]):
        with pytest.raises(BadRequestError, match="several"):
            planner([], nodes).first(request({"model": ""}))
        with pytest.raises(BadRequestError, match="several") as raised:
            nodes_for("/tokenize", "", nodes, [])
        assert raised.value.param == "model"


def test_a_listed_adapter_names_its_base_model() -> None:
    """As vLLM lists it: where its files are, and its parent; how long a prompt may be is its parent's."""
    same = {"object": "model", "created": 0, "owned_by": "baton"}

    assert models([ONE, serving("one", "poet")]) == [
        {**same, "id": "one", "root": "/models/one", "parent": None, "max_model_len": 4096},
        {**same, "id": "poet", "root": "/adapters/poet", "parent": "one", "max_model_len": None},
    ]
