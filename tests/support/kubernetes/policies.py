"""What NetworkPolicies let in, worked out from the objects as a network plugin does it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from tests.support.kubernetes.render import Object

HERE: Final = "baton"
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a connection comes from, or goes to."""

    labels: Labels
    namespace: str = HERE
    ports: Mapping[str, int] = field(default_factory=dict)  # by name

    @classmethod
    def of(cls, template: Object) -> Self:
        """Return the place of a template's pods."""
        ports = template["spec"]["containers"][0].get("ports", ())
        named = {each["name"]: each["containerPort"] for each in ports}
        return cls(labels=template["metadata"]["labels"], ports=named)


def let_in(objects: Sequence[Object], source: Place, target: Place, port: int) -> bool:
    """Tell whether a pod may open a connection to a port of another."""
    policies = [
        each["spec"]
        for each in objects
        if each["kind"] == "NetworkPolicy" and _selects(each["spec"]["podSelector"], target.labels)
    ]
    assert all(policy["policyTypes"] == ["Ingress"] for policy in policies)
    return not policies or any(
        ("from" not in rule or any(_is_from(peer, source) for peer in rule["from"]))
        and ("ports" not in rule or any(_is_to(wanted, port, target.ports) for wanted in rule["ports"]))
        for policy in policies
        for rule in policy.get("ingress", ())
    )


def _selects(selector: Object, labels: Labels) -> bool:
    for wanted in selector.get("matchExpressions", ()):
        assert wanted["operator"] == "In"  # no other is used
        if labels.get(wanted["key"]) not in wanted["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _is_from(peer: Object, source: Place) -> bool:
    if "namespaceSelector" in peer:
        right_place = _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": source.namespace})
    else:
        right_place = source.namespace == HERE
    return right_place and _selects(peer.get("podSelector", {}), source.labels)


def _is_to(wanted: Object, port: int, names: Mapping[str, int]) -> bool:
    named = wanted["port"]
    first: int = names.get(named, -1) if isinstance(named, str) else named
    return bool(first <= port <= wanted.get("endPort", first))
