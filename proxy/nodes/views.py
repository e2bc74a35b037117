"""What the admin API takes and answers."""

from typing import Any

from pydantic import BaseModel, Field

from baton.contracts.kv_transfer import Role


class NodeAddress(BaseModel):
    """Which node, in which role."""

    url: str = Field(examples=["http://10.0.0.5:8100"])
    role: Role


class DrainRequest(BaseModel):
    """Which node gets no more work; or, with `draining` false, gets work again."""

    url: str
    draining: bool = True


class EvacuateRequest(BaseModel):
    """Which decode node's streams go on on others; with `drain` it gets no more work either."""

    url: str
    drain: bool = False


class RoleRequest(BaseModel):
    """Which node, with `transfer.both_ways`, serves in which role from now on."""

    url: str
    role: Role
    unchanged_for_s: float = Field(
        0.0, ge=0.0, description="refuse the order (409) if any role was changed in that time"
    )
    ago_s: float = Field(0.0, ge=0.0, description="when another proxy was given the order that this one repeats")


class NodeView(BaseModel):
    """One member as this proxy sees it."""

    url: str
    role: Role
    slot: int
    state: str = Field(
        description="unknown, ready, silent, unready, draining, isolated or down; only ready nodes get work, and silent ones "
        "where no node of their role is ready"
    )
    reason: str = Field(description="why it is not ready")
    breaker: str = Field(description="closed, open or half_open")
    breaker_openings: int
    draining: bool = Field(description="whether an operator drains it")
    incarnation: str = Field(description="changes when its process restarts")
    models: list[str]
    requests: int = Field(description="in flight through this proxy")
    prompt_bytes: int = Field(description="of those requests")
    other_requests: int = Field(0, description="that it has from others than this proxy, as it said last")
    own_prompt_bytes: int = Field(description="of those, what a decode node computes itself at the moment")
    both_ways: bool = Field(False, description="whether it can serve in the other role")
    started_as: Role | None = Field(None, description="the role that it was started in; null: it has not said")
    prefill_load: float | None = Field(
        None, description="prompts' work on it through this proxy, 1: all that one node can do; null: not known"
    )
    decode_load: float | None = Field(
        None, description="tokens' work on it, 1: all that one node can do within the target; null: not known"
    )
    streams_left: dict[str, int] = Field(
        {},
        description="of a decode node that was evacuated or drained, since that order: streams that went on on another one with the KV "
        "from this one (moved) or without (recomputed), and those whose KV could not be sent ahead (failed)",
    )
    streams_staying: dict[str, int] = Field(
        {},
        description="streams that are to leave it and are still there, by why: sending (their KV goes ahead), waiting (others go first), "
        "failed (it could not be sent ahead; only a drain goes on without), beginning or ending, no_node, or a reason of `baton_streams_not_resumed_total`",
    )


class NodeList(BaseModel):
    """All members, or those that were asked for."""

    nodes: list[NodeView]


class SourceView(BaseModel):
    """One place that says who is a member."""

    role: Role
    name: str
    urls: list[str] = Field(description="what it says, or said last")
    problem: str = Field("", description="why it could not be asked")


class RemovedView(BaseModel):
    """A node that an operator removed although a source goes on naming it."""

    role: Role
    url: str


class LeavingView(BaseModel):
    """A node that is no member any more and still carries requests."""

    role: Role
    url: str
    slot: int
    requests: int


class AdmissionView(BaseModel):
    """Who is let in."""

    inside: int = Field(description="requests being served")
    max_requests: int
    waiting: int
    max_waiting: int
    expected_wait_s: float = Field(description="of a request that came now and were the last to be let in")
    connections_to_nodes: int = Field(
        description="claimed: two for a request, one for a stream whose prefill leg has ended"
    )
    most_connections_to_nodes: int = Field(description="that the limit of open files allows")


class WorkerView(BaseModel):
    """One of the proxy's processes."""

    worker: int
    pid: int | None = Field(description="null: it did not answer")
    uptime_s: float = 0.0
    in_flight: int = Field(default=0, description="requests whose answer has not ended, those that wait included")
    requests: int = Field(description="in flight through it, once per node")
    retries_left: int = Field(
        default=0, description="that it may make now, over all requests; see retry_share, retry_burst"
    )
    admission: AdmissionView | None = Field(default=None, description="null: it did not answer")


class AdminState(BaseModel):
    """Everything about membership and admission; of several workers, all together."""

    version: str
    uptime_s: float = Field(description="of the worker that has run for longest")
    settings: dict[str, Any] = Field(description="section `proxy` of the configuration in force, without secrets")
    workers: list[WorkerView]
    nodes: list[NodeView]
    sources: list[SourceView]
    removed: list[RemovedView]
    roles_unchanged_s: float | None = Field(description="since a node was last ordered to change its role; null: never")
    leaving: list[LeavingView]


class NodeResult(BaseModel):
    """What one node answered to a call that went to all."""

    url: str
    role: Role
    ok: bool
    status: int | None
    answer: Any


class FanOutResult(BaseModel):
    """What all nodes answered."""

    nodes: list[NodeResult]
