"""What `/ready` and `/v1/models` say about the members. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from baton.proxy.nodes.node import LONGEST_SILENCE_S, TAKES_WORK, Node, State, unpairable_because


def readiness(prefill: Sequence[Node], decode: Sequence[Node], *, needs_prefill: bool) -> dict[str, Any]:
    """Say whether requests can be served as configured, what is missing, and what is known of each node."""
    prefill_nodes, decode_nodes = _expected_to_serve(prefill), _expected_to_serve(decode)
    unpairable = [
        {"prefill": node.url, "decode": other.url, "reason": reason}
        for node in prefill_nodes
        for other in decode_nodes
        if (reason := unpairable_because(node, other))
    ]
    reasons = [] if decode_nodes else ["no decode node is ready"]
    if needs_prefill and not prefill_nodes:
        reasons.append("no prefill node is ready")
    elif needs_prefill and decode_nodes and len(unpairable) == len(prefill_nodes) * len(decode_nodes):
        reasons.append("no ready prefill node makes KV that a ready decode node can use")
    return {
        "ready": not reasons,
        "reasons": reasons,
        "nodes": [_describe(node) for node in (*prefill, *decode)],
        "unpairable": unpairable,
    }


def models(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Return what the nodes in use serve, in OpenAI's shape with vLLM's extra keys."""
    found: dict[str, dict[str, Any]] = {}
    for node in nodes:
        if node.state not in TAKES_WORK:
            continue
        assert node.info is not None
        adapters = {adapter.name: adapter for adapter in node.info.adapters or ()}
        for name in node.info.served_models:
            adapter = adapters.get(name)
            found.setdefault(
                name,
                {
                    "id": name,
                    "object": "model",
                    "created": 0,
                    "owned_by": "baton",
                    "root": adapter.root if adapter else node.info.model,
                    "parent": adapter.parent if adapter else None,
                    "max_model_len": None if adapter else node.info.max_model_len_tokens,
                },
            )
    return list(found.values())


def _expected_to_serve(nodes: Iterable[Node]) -> list[Node]:
    """Return those that are ready, or silent for so short a time that a load balancer had better not look elsewhere."""
    return [
        node
        for node in nodes
        if node.state is State.READY or (node.state is State.SILENT and node.silent_s < LONGEST_SILENCE_S)
    ]


def _describe(node: Node) -> dict[str, Any]:
    return {
        "url": node.url,
        "role": node.role,
        "slot": node.slot,
        "state": str(node.state),
        "reason": node.reason,
        "breaker": str(node.breaker.state),
        "models": node.info.served_models if node.info else [],
        "requests": node.requests,
    }
