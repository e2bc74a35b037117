"""Which answers a prefill node can make by itself: those that are a decode node's, as far as both have said. Pure."""

from collections.abc import Sequence

from baton.proxy.nodes.node import Node
from baton.proxy.planning.fleet import that_fit
from baton.proxy.planning.plans import sample_alike
from baton.proxy.request.eligibility import generates_one
from baton.proxy.request.endpoints import CHAT, COMPLETIONS
from baton.proxy.request.parse import ClientRequest


def may_answer(request: ClientRequest, chosen_prefill: Node, chosen_decode: Node) -> bool:
    """Whether a prefill node may make the answer that a decode node would make."""
    return (
        request.endpoint in (CHAT, COMPLETIONS)
        and sample_alike(chosen_prefill, chosen_decode)
        and not _has_adapter(request, chosen_prefill, chosen_decode)
    )


def that_can_answer(request: ClientRequest, prefill: Sequence[Node], decode: Sequence[Node]) -> list[Node]:
    """Return the prefill nodes that can give the whole answer: of one token, sampled as a decode node would."""
    if request.endpoint not in (CHAT, COMPLETIONS) or not generates_one(request.fields):
        return []
    if _has_adapter(request, *decode):
        return []
    alike = {node.info.first_tokens for node in decode if node.info is not None} - {""}
    fit = that_fit(prefill, decode)
    return [node for node in fit if node.info is not None and node.info.first_tokens in alike]


def _has_adapter(request: ClientRequest, *nodes: Node) -> bool:
    """Whether a request names a LoRA adapter: nodes announce names, and two may have loaded other files under one."""
    return any(request.model in node.adapter_names for node in nodes)
