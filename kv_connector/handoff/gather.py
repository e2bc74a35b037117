"""One request's KV from several P ranks: the flows of a D rank, joined.

Each flow is a transfer of its own to the state machine below (`Consumer`), with an id and a request id of its own. The
request is resolved when all of its flows have been, or one of them failed: then the others are given up. Its blocks are
given back when no flow of it can write any more (I3), and its KV is used only if every P rank committed, and all of
them together pushed everything that this rank has (I4). With one P rank there is one flow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.handoff.incoming import BlockReservation, Resolved
from baton.kv_connector.layout.tp_mapping import transfer_id_of_flow
from baton.kv_connector.protocol.messages import Commit


class Flow(NamedTuple):
    """One P rank that a request's KV comes from."""

    flow_id: str
    peer: str  # control address


@dataclass(slots=True)
class _Gathering:
    transfer_id: str
    shares: int  # pairs of region and head that this rank has; all P ranks together must push so many
    flows: dict[str, str]  # request id of a flow → flow id
    prepared: bool = False  # vLLM waits for it
    resolved: bool = False
    commits: list[Commit] = field(default_factory=list)


class Gather:
    """All requests of one decode rank; the caller drains `resolved`, `closed` and `started`."""

    def __init__(self, consumer: Consumer) -> None:
        self.resolved: list[Resolved] = []
        self.closed: list[str] = []  # request ids
        self.started: list[str] = []  # transfer ids
        self._consumer = consumer
        self._requests: dict[str, _Gathering] = {}
        self._request_of: dict[str, str] = {}  # request id of a flow → request id
        self._transfers: dict[str, str] = {}  # transfer id → request id

    def watch(self, transfer_id: str, request_id: str, flows: Sequence[Flow], shares: int, now: float) -> None:
        """A request that wants this transfer's KV has arrived; at least one flow, which together push so many shares."""
        if transfer_id in self._transfers:
            reason = "another request has this transfer id"
            self.resolved.append(Resolved(request_id, transfer_id, False, False, reason, None))
            return
        parts = {request_id if len(flows) == 1 else f"{request_id}/{i}": flow for i, flow in enumerate(flows)}
        self._requests[request_id] = _Gathering(
            transfer_id, shares, {part: flow.flow_id for part, flow in parts.items()}
        )
        self._transfers[transfer_id] = request_id
        for part, (flow_id, peer) in parts.items():
            self._request_of[part] = request_id
            self._consumer.watch(flow_id, part, peer, now, len(flows))

    def prepare(self, request_id: str, epoch: int, wish: BlockReservation, now: float) -> None:
        gathering = self._requests.get(request_id)
        if gathering is None:
            self._consumer.prepare(request_id, epoch, wish, now)  # it has failed since, and this says so
            return
        gathering.prepared = True
        for part in gathering.flows:
            self._consumer.prepare(part, epoch, wish, now)

    def zeroed(self, request_ids: Sequence[str], now: float) -> None:
        """The device has passed the point at which these requests' blocks were allocated."""
        self._consumer.zeroed([part for request_id in request_ids for part in self._parts(request_id)], now)

    def cancel(self, request_id: str, now: float, *reason: str) -> None:
        """No request waits for this KV any more, or it cannot be received."""
        for part in self._parts(request_id):
            self._consumer.cancel(part, now, *reason)

    def request_of(self, transfer_id: str) -> str | None:
        return self._transfers.get(transfer_id)

    def collect(self, now: float) -> None:
        """Take in what the flows' machine has produced: `resolved`, `closed` and `started`. Empties them."""
        consumer = self._consumer
        touched: dict[str, None] = {}
        while consumer.resolved or consumer.closed:  # to give up the other flows resolves them in turn
            resolved, consumer.resolved[:] = consumer.resolved[:], []
            closed, consumer.closed[:] = consumer.closed[:], []
            for part in closed:
                touched[self._request_of.get(part, part)] = None
            for one in resolved:
                request_id = self._request_of.get(one.request_id, one.request_id)
                touched[request_id] = None
                self._take(request_id, one, now)
            for request_id in closed:
                if request_id not in self._request_of:
                    self.closed.append(request_id)  # one that failed before it was prepared
        for request_id in touched:
            self._end(request_id)
        self._started()

    def _take(self, request_id: str, one: Resolved, now: float) -> None:
        gathering = self._requests.get(request_id)
        if gathering is None:
            self.resolved.append(one)
            return
        if gathering.resolved:
            return
        if one.commit is not None and not one.reason:
            gathering.commits.append(one.commit)
            if len(gathering.commits) < len(gathering.flows):
                return
            with_token = next((commit for commit in gathering.commits if commit.first is not None), one.commit)
            self._resolve(request_id, gathering, self._incomplete(gathering), with_token)
            return
        self._resolve(request_id, gathering, one.reason, None)
        self.cancel(request_id, now, one.reason)

    def _incomplete(self, gathering: _Gathering) -> str:
        pushed = sum(commit.shares for commit in gathering.commits)
        if pushed != gathering.shares:
            return f"the prefill ranks pushed {pushed} of this rank's {gathering.shares} parts"
        return ""

    def _resolve(self, request_id: str, gathering: _Gathering, reason: str, commit: Commit | None) -> None:
        gathering.resolved = True
        ok = commit is not None and not reason
        self.resolved.append(
            Resolved(request_id, gathering.transfer_id, ok, gathering.prepared, reason, commit if ok else None)
        )

    def _end(self, request_id: str) -> None:
        """Forget a request none of whose flows is left."""
        gathering = self._requests.get(request_id)
        if gathering is None or any(flow in self._consumer.transfers for flow in gathering.flows.values()):
            return
        assert gathering.resolved  # a flow is resolved before it is closed
        if gathering.prepared:
            self.closed.append(request_id)
        del self._requests[request_id]
        del self._transfers[gathering.transfer_id]
        for part in gathering.flows:
            del self._request_of[part]

    def _started(self) -> None:
        started, self._consumer.started[:] = self._consumer.started[:], []
        self.started += dict.fromkeys(transfer_id_of_flow(flow) for flow in started)

    def _parts(self, request_id: str) -> list[str]:
        gathering = self._requests.get(request_id)
        return list(gathering.flows) if gathering else [request_id]
