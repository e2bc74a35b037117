"""Who reaches whom under an overlay's NetworkPolicies, worked out from the rendered objects as a network plugin does it."""

from typing import Final

import pytest

from tests.support.kubernetes.policies import Place, let_in
from tests.support.kubernetes.render import Object, pod_templates, render

PROXY, PREFILL, DECODE = "proxy", "prefill", "decode"
STRANGER: Final = "stranger"  # a pod of another namespace
NEIGHBOUR: Final = "neighbour"  # a foreign pod in our namespace
PROMETHEUS: Final = "prometheus"
HTTP: Final = {PROXY: 8000, PREFILL: 8100, DECODE: 8200}
CONTROL: Final = (9100, 9115, 9131)  # one for each rank
DATA: Final = (15000, 16001, 17000)
_OTHERS: Final = {
    STRANGER: Place(labels={"app": "stranger"}, namespace="elsewhere"),
    NEIGHBOUR: Place(labels={"app": "neighbour"}),
    PROMETHEUS: Place(labels={"app.kubernetes.io/name": "prometheus"}, namespace="monitoring"),
}


def _place(objects: tuple[Object, ...], who: str) -> Place:
    if who in _OTHERS:
        return _OTHERS[who]
    places = [Place.of(each) for each in pod_templates(objects).values()]
    return next(each for each in places if each.labels["app.kubernetes.io/component"] == who)


def reaches(overlay: str, source: str, target: str, port: int) -> bool:
    """Tell whether a pod may open a connection to a port of another."""
    objects = render(overlay)
    return let_in(objects, _place(objects, source), _place(objects, target), port)


def test_what_the_work_needs_is_open(overlay: str) -> None:
    """Clients to proxies, proxies to nodes, decode nodes to control ports, prefill nodes to data ports."""
    assert reaches(overlay, STRANGER, PROXY, HTTP[PROXY])
    assert reaches(overlay, PROXY, PREFILL, HTTP[PREFILL])
    assert reaches(overlay, PROXY, DECODE, HTTP[DECODE])
    assert all(reaches(overlay, DECODE, PREFILL, port) for port in CONTROL)
    assert all(reaches(overlay, PREFILL, DECODE, port) for port in DATA)


@pytest.mark.parametrize("who", [PROXY, STRANGER, NEIGHBOUR, PROMETHEUS])
def test_no_other_pod_reaches_control_and_data(overlay: str, who: str) -> None:
    """The data ports take writes from every pod that reaches them."""
    assert not [port for port in CONTROL if reaches(overlay, who, PREFILL, port)]
    assert not [target for target in (PREFILL, DECODE) for port in DATA if reaches(overlay, who, target, port)]


def test_nodes_reach_no_more_of_each_other_than_they_use(overlay: str) -> None:
    """KV goes one way: no pod reaches a prefill node's data ports; nodes do not ask each other over HTTP."""
    assert not [port for port in DATA if reaches(overlay, DECODE, PREFILL, port)]
    assert not reaches(overlay, PREFILL, DECODE, HTTP[DECODE])
    assert not reaches(overlay, DECODE, PREFILL, HTTP[PREFILL])


@pytest.mark.parametrize("role", [PREFILL, DECODE])
def test_nodes_of_one_kind_are_fenced_from_each_other(overlay: str, role: str) -> None:
    """Unless a node is several pods, which talk to each other at ports that are not known beforehand."""
    inside = [reaches(overlay, role, role, port) for port in (HTTP[role], 6379, *CONTROL, *DATA)]

    assert set(inside) == {overlay == "multi-host"}


def test_the_nodes_http_is_for_proxies_and_prometheus(overlay: str) -> None:
    """It is plain, and vLLM's own routes are behind it."""
    for role in (PREFILL, DECODE):
        assert not reaches(overlay, STRANGER, role, HTTP[role])
        assert not reaches(overlay, NEIGHBOUR, role, HTTP[role])
        assert reaches(overlay, PROMETHEUS, role, HTTP[role]) is (overlay != "cpu")
