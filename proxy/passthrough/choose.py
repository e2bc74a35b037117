"""Which nodes may serve a route, the best first. Pure."""

from collections.abc import Sequence

from baton.proxy.errors import ProxyError, UnavailableError
from baton.proxy.nodes.base_models import check_is_one
from baton.proxy.nodes.node import TAKES_WORK, Node, usable


class NotServedError(ProxyError):
    """No node has this route."""

    status = 404
    kind = "not_found_error"


def nodes_for(template: str, model: str, decode: Sequence[Node], prefill: Sequence[Node]) -> list[Node]:
    """Return the nodes to ask for a route, in this order: decode nodes before prefill nodes, the least busy first.

    Where no node serves the model, a node may say so.
    """
    ready = [node for node in (*decode, *prefill) if node.state in TAKES_WORK]
    if not ready:
        raise UnavailableError("no node is ready")
    having = [node for node in ready if _has(node, template)]
    if not having:
        raise NotServedError(f"{template}: no node of this cluster serves this route; it depends on the nodes' models")
    check_is_one([node for node in (*decode, *prefill) if _has(node, template)], model)
    serving = usable(node for node in having if node.serves(model)) or usable(having)
    return sorted(serving, key=lambda node: (node.role != "decode", node.load))


def _has(node: Node, template: str) -> bool:
    """Whether a node has a route; one that does not say is believed to have it if it decodes."""
    routes = node.info.routes if node.info else None
    return node.role == "decode" if routes is None else template in routes
