"""Who reaches whom: the ways that an overlay's NetworkPolicies open, one by one; all others are closed."""

from typing import Final

from tests.support.kubernetes.render import Object, render

Way = tuple[str, str, str]  # from whom, to whom, at which ports
ALL: Final = "all"
NOBODY: Final[Way] = ("nobody", ALL, ALL)
WAYS: Final[set[Way]] = {
    NOBODY,  # to all pods of the namespace, unless another policy says otherwise
    (ALL, "proxy", "http"),
    ("proxy", "decode, prefill", "http"),
    ("decode", "prefill", "9100-9131"),  # control: a port for each rank
    ("prefill", "decode", "15000-17000"),  # KV goes one way: the data ports take writes from everybody who reaches them
}
MONITORED: Final[set[Way]] = {("prometheus in monitoring", "decode, prefill", "http")}
# The pods of one node draw their ports at random.
GROUPED: Final[set[Way]] = {(role, role, ALL) for role in ("prefill", "decode")}


def ways(policy: Object) -> list[Way]:
    assert policy["policyTypes"] == ["Ingress"]
    to = _pods(policy["podSelector"])
    return [
        (source, to, ", ".join(map(_ports, rule.get("ports", ()))) or ALL)
        for rule in policy.get("ingress", ())
        for source in map(_peer, rule.get("from", ({},)))
    ] or [("nobody", to, ALL)]


def _pods(selector: Object) -> str:
    """Return the components, or the name of the foreign program, that a selector means."""
    labels = dict(selector.get("matchLabels", {}))
    name, component = (labels.pop(f"app.kubernetes.io/{key}", "") for key in ("name", "component"))
    components = [component] if component else []
    for each in selector.get("matchExpressions", ()):
        assert (each["key"], each["operator"]) == ("app.kubernetes.io/component", "In")
        components += each["values"]
    assert not labels
    assert name == "baton" or not components
    return ", ".join(sorted(components)) or name or ALL


def _peer(peer: Object) -> str:
    namespace = peer.get("namespaceSelector", {}).get("matchLabels", {}).get("kubernetes.io/metadata.name")
    assert peer.keys() <= {"podSelector", "namespaceSelector"}
    return _pods(peer.get("podSelector", {})) + (f" in {namespace}" if "namespaceSelector" in peer else "")


def _ports(port: Object) -> str:
    return str(port["port"]) + (f"-{port['endPort']}" if "endPort" in port else "")


def test_no_way_is_open_but_those_that_the_work_needs(overlay: str) -> None:
    """Nodes of one kind are fenced from each other, unless a node is several pods; only Prometheus comes from elsewhere."""
    found = [way for each in render(overlay) if each["kind"] == "NetworkPolicy" for way in ways(each["spec"])]

    wanted = WAYS | (MONITORED if overlay != "cpu" else set()) | (GROUPED if overlay == "multi-host" else set())
    assert sorted(found) == sorted(wanted)
