"""What both scheduler sides share: whose requests are ours, and a memory of failures for the node API."""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from baton.contracts import kv_transfer
from baton.contracts.kv_transfer import CHOICE, Grid, Role, TransferParams, TransferParamsError
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.telemetry.refusals import Refusals

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

REMEMBERED_FAILURES = 32
OTHER: Final = "other"  # of a reason that is not recognised, as one from a newer peer
_PHRASES: Final = (
    ("refused", ("refused",)),
    ("timeout", ("no commit within", "not verified within", "had not started it")),
    ("peer_lost", ("does not answer", "restarted", "fell silent")),
    ("push_failed", ("a push failed",)),
    ("fenced", ("engine was fenced",)),
    (
        "prefill_lost",
        ("preempted", "aborted", "forward pass failed", "device failed", "no decode node asked", "stood still"),
    ),
    ("mismatch", ("different prompts", "does not fit the prompt", "another prompt", "not the KV that was sent")),
    ("ranks", ("the proxy takes this node for", "the proxy names", "prefill ranks pushed", "divides this rank's KV")),
)
CLASSES: Final = (*(name for name, _ in _PHRASES), OTHER)


def params_of(request: "Request", role: Role, secret: ClusterSecret, refusals: Refusals) -> TransferParams | None:
    """Return the verified parameters of a request that is part of a transfer; `None` for an ordinary one.

    Its prompt may have no token ids: see `is_named`. The node's HTTP middleware has refused unsigned parameters
    already; this is the second lock. A request whose parameters are refused here is served without a transfer.
    """
    if request.kv_transfer_params is None:
        return None
    try:
        params = kv_transfer.verify(request.kv_transfer_params, secret)
    except TransferParamsError as exc:
        refusals.count(exc.kind, exc)
        return None
    return params if params.role == role else None


def is_named(request: "Request") -> bool:
    """Whether token ids name a request's prompt: not one that is given as embeddings, in part or whole."""
    return bool(request.prompt_token_ids) and request.prompt_embeds is None


def choice_of(request: "Request") -> int:
    """Return which choice of its answer a request is, as the node's API server says."""
    sampling = request.sampling_params
    choice = (sampling.extra_args or {}).get(CHOICE, 0) if sampling is not None else 0
    return choice if isinstance(choice, int) else -1


def wrong_grid(said: Grid, ours: Grid) -> str:
    """Say that a node was started again with other sizes since the proxy looked."""
    return f"the proxy takes this node for tp={said.tp} pp={said.pp}, it is tp={ours.tp} pp={ours.pp}"


def scheduled_in(output: "SchedulerOutput") -> Iterator[tuple[str, Sequence[Sequence[int]], int]]:
    """Yield each request of a step, its new blocks by KV cache group, and how many tokens it will have computed then."""
    cached, scheduled = output.scheduled_cached_reqs, output.num_scheduled_tokens
    for new in output.scheduled_new_reqs:
        yield new.req_id, new.block_ids, new.num_computed_tokens + scheduled[new.req_id]
    for request_id, blocks, computed in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        yield request_id, blocks or (), computed + scheduled[request_id]


def reason_class(reason: str) -> str:
    """Say why a transfer came to nothing, as one of the few values of a metric's label: reasons are sentences, some P's."""
    return next((name for name, phrases in _PHRASES if any(phrase in reason for phrase in phrases)), OTHER)


class Failures:
    """The last failures, newest last, and how many there were of each kind."""

    def __init__(self) -> None:
        self._recent: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_FAILURES)
        self._by_class = dict.fromkeys(CLASSES, 0)

    def add(self, transfer_id: str, reason: str) -> None:
        self._recent.append({"transfer_id": transfer_id, "reason": reason})
        self._by_class[reason_class(reason)] += 1
        logger.warning("transfer %s failed: %s", transfer_id, reason)

    def recent(self) -> list[dict[str, Any]]:
        return list(self._recent)

    def by_class(self) -> dict[str, int]:
        return dict(self._by_class)
