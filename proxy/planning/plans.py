"""The two kinds of plan."""

import msgspec

from baton.contracts.http import DISAGGREGATED, LOCAL
from baton.proxy.nodes.node import Node
from baton.proxy.planning.reasons import LABELS
from baton.proxy.routing.router import Choice


class LocalPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One node computes the prompt and decodes."""

    decode: Node  # the node that does both; it may have either role
    path: str  # LOCAL or RECOMPUTED
    reason: str  # for the response header
    label: str = ""  # the same for `baton_decisions_total`
    work_bytes: int = 0  # what the prompt takes, in bytes that are computed
    cached_bytes: int = 0  # of the prompt, that the node is believed to have


def alone(choice: Choice, reason: str) -> LocalPlan:
    return LocalPlan(
        decode=choice.node,
        path=LOCAL,
        reason=reason,
        label=LABELS[reason],
        work_bytes=choice.work_bytes,
        cached_bytes=choice.cached_bytes,
    )


class DisaggregatedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One node computes the prompt, the other decodes."""

    decode: Node
    prefill: Node
    moves: bool = False  # the KV is that of an answer so far, and `prefill` the node that has made it
    rank: int  # data-parallel rank of the prefill node
    transfer_id: str
    work_bytes: int = 0  # what the prompt takes on the prefill node, in bytes that are computed; 0: not known
    cached_bytes: int = 0  # of the prompt, that the prefill node is believed to have
    path: str = DISAGGREGATED
    reason: str = ""
    label: str = ""  # for `baton_decisions_total`, if it might have been otherwise

    @property
    def ranks(self) -> int:
        """How many data-parallel ranks the prefill node has."""
        return len(self._control_addresses)

    @property
    def first_token(self) -> bool:
        """Whether the prefill node can sample the first token, and the decode node start with it."""
        return sample_alike(self.prefill, self.decode)

    @property
    def control_address(self) -> str:
        """Where the decode node finds the ranks of the prefill engine."""
        return self._control_addresses[self.rank]

    @property
    def _control_addresses(self) -> list[str]:
        assert self.prefill.info is not None
        return self.prefill.info.control_addresses


Plan = LocalPlan | DisaggregatedPlan


def sample_alike(prefill_node: Node, decode_node: Node) -> bool:
    """Whether a prefill node's tokens are a decode node's, as both have said."""
    prefill, decode = prefill_node.info, decode_node.info
    return prefill is not None and decode is not None and "" != prefill.first_tokens == decode.first_tokens
