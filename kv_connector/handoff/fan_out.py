"""One prompt's KV for several D ranks: the flows of a P rank, by request.

Each flow is a transfer of its own to the state machine below (`Producer`), with an id and a request id of its own. What
the scheduler says of a request goes to all of its flows, and its blocks may be freed when all of them have let go. With
one D rank there is one flow; a rank whose heads others have too may have none.
"""

from collections.abc import Sequence

from baton.kv_connector.handoff.outgoing import Prompt
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.layout.tp_mapping import transfer_id_of_flow
from baton.kv_connector.protocol.messages import SampledToken


class FanOut:
    """All requests of one prefill rank; its events are `Producer`'s, of all flows at once. The caller drains `released`."""

    def __init__(self, producer: Producer) -> None:
        self.released: list[str] = []  # requests whose source blocks may be freed
        self._producer = producer
        self._flows: dict[str, dict[str, str]] = {}  # request id → request id of a flow → flow id
        self._open: dict[str, set[str]] = {}  # transfer id → its flows that have not ended
        self._holding: dict[str, int] = {}  # held request → its flows that have not let go
        self._request_of: dict[str, str] = {}  # request id of a flow → request id

    def start(
        self, transfer_id: str, request_id: str, flows: Sequence[tuple[str, int]], prompt: Prompt, now: float
    ) -> None:
        """The prompt is scheduled for the first time; `flows`: their ids, each with its `Prompt.shards`."""
        parts = {request_id if len(flows) == 1 else f"{request_id}/{i}": flow for i, flow in enumerate(flows)}
        self._flows[request_id] = {part: flow_id for part, (flow_id, _) in parts.items()}
        for part, (flow_id, shards) in parts.items():
            self._request_of[part] = request_id
            self._producer.start(flow_id, part, prompt._replace(shards=shards), now)
            if flow_id in self._producer.transfers:  # else it has ended already
                self._open.setdefault(transfer_id, set()).add(flow_id)

    def add_source_blocks(self, request_id: str, *blocks: Sequence[int]) -> None:
        for part in self._parts(request_id):
            self._producer.add_source_blocks(part, *blocks)

    def ready(self, request_id: str, layer: int, blocks: int, now: float) -> None:
        for part in self._parts(request_id):
            self._producer.ready(part, layer, blocks, now)

    def token_sampled(self, request_id: str, token: SampledToken | None, now: float) -> None:
        for part in self._parts(request_id):
            self._producer.token_sampled(part, token, now)

    def void(self, request_id: str, reason: str, now: float) -> None:
        for part in self._parts(request_id):
            self._producer.void(part, reason, now)
        if request_id not in self._holding:  # else its flows are still to let go
            self._forget(request_id)

    def give_up(self, request_id: str, reason: str, now: float) -> None:
        """A held request's blocks are wanted back, from those flows that no decode rank has reserved for."""
        for part in self._parts(request_id):
            self._producer.give_up(part, reason, now)

    def hold(self, request_id: str, now: float) -> None:
        """The request has finished; its blocks are kept until `released` names it."""
        parts = self._parts(request_id)
        self._holding[request_id] = len(parts)
        for part in parts:
            self._producer.hold(part, now)
        self.collect()
        if not parts:
            self._release(request_id)

    def is_open(self, transfer_id: str) -> bool:
        """Whether some flow of a transfer that has started here has not ended."""
        return transfer_id in self._open

    def cancel(self, transfer_id: str, now: float) -> int:
        """No request needs the transfer any more. Returns how many flows of it were open."""
        flows = list(self._open.get(transfer_id, ()))
        if not flows:  # nothing has started: what decode ranks have asked for, and whatever comes later
            flows = [flow for flow in self._producer.transfers if transfer_id_of_flow(flow) == transfer_id]
            flows.append(transfer_id)
        return sum([self._producer.cancel(flow, now) for flow in flows])

    def ended(self, transfer_id: str, flow_id: str) -> bool:
        """A flow has ended. Returns whether it was the transfer's last."""
        flows = self._open.get(transfer_id, set())
        flows.discard(flow_id)
        if not flows:
            self._open.pop(transfer_id, None)
        return not flows

    def collect(self) -> None:
        """Take in which flows have let go of their blocks."""
        released, self._producer.released[:] = self._producer.released[:], []
        for part in released:
            request_id = self._request_of.get(part, part)
            if request_id in self._holding:
                self._holding[request_id] -= 1
                if self._holding[request_id] == 0:
                    self._release(request_id)

    def _release(self, request_id: str) -> None:
        del self._holding[request_id]
        self.released.append(request_id)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        for part in self._flows.pop(request_id, ()):
            del self._request_of[part]

    def _parts(self, request_id: str) -> list[str]:
        return list(self._flows.get(request_id, ()))
