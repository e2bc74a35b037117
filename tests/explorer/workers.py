"""The product's workers of a node that sends and receives, without threads and sockets, and what they talk to."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from baton.kv_connector.handoff.gather import Flow
from baton.kv_connector.handoff.metadata import DecodeReport
from baton.kv_connector.handoff.outgoing import Progress
from baton.kv_connector.protocol.messages import Message, decode
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.prompt_batches import PromptBatches
from tests.explorer.both_ways import BothWays
from tests.explorer.decode import ConsumerRank
from tests.explorer.prefill import ProducerRank
from tests.explorer.scene import Machines


class Silent:
    """Takes every call and does nothing."""

    def __reduce__(self) -> str:
        return "SILENT"

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: object, **__: object) -> None:
    pass


SILENT = Silent()


class Introduction:
    """Each node has one rank, with one layer."""

    samples = False

    def flows_from(self, transfer_id: str, _grids: object) -> list[tuple[str, int]]:
        return [(transfer_id, 1)]

    def flows_to(self, transfer_id: str, _grids: object, peers: list[str]) -> list[Flow]:
        return [Flow(transfer_id, peers[0])]

    def shares_from(self, _grids: object) -> int:
        return 1


class Post:
    """In the place of the control channel."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []

    def send(self, peer: str | tuple[str, str], payload: bytes) -> None:
        self.sent.append((peer if isinstance(peer, str) else peer[1], decode(payload)))

    def forget(self, _peer: object) -> None:
        pass


class Issued:
    """What the step under way computes for prompts that are sent, in the place of the policy that says when layers are ready."""

    def __init__(self) -> None:
        self.prompts: list[Progress] = []

    def begin_step(self, prompts: Iterable[Progress], _layers_at_once: object) -> None:
        self.prompts = list(prompts)

    def end_step(self) -> None:
        pass


class Sending(ProducerRank, PrefillWorker):
    """The product's worker of a node that sends, without threads and sockets."""

    def __init__(self, scene: BothWays, machines: Machines, incarnation: int) -> None:
        ProducerRank.__init__(self, scene, machines, incarnation)
        self.address = self.place
        self.post, self.issued = Post(), Issued()
        fakes = dict.fromkeys(("_sender", "_accounts", "_timelines"), SILENT)
        own = {"_loop": self.post, "_sync": self.issued, "_groups": PromptBatches(), "_introduction": Introduction()}
        state: dict[str, Any] = {"_prompts": (), "_attending": None, "_awaited": {}, "_drafts": False}
        vars(self).update(fakes | own | state, _lock=nullcontext(), _producer=self.machine, _fan_out=self.fan_out)

    def _describe(self, *_: object) -> dict[str, Any]:
        return {}


class Receiving(ConsumerRank, DecodeWorker):
    """The product's worker of a node that receives, likewise. It is its own engines' thread, and waits for the device."""

    def __init__(self, scene: BothWays, machines: Machines, incarnation: int) -> None:
        ConsumerRank.__init__(self, scene, machines, incarnation)
        self.post, self.zeroing = Post(), Zeroing()
        fakes = dict.fromkeys(("_waker", "_digests", "_refusals"), SILENT)
        own = {"_loop": self.post, "_zeroing": self.zeroing, "_engines": Engines(self.fences), "_landing": None}
        state: dict[str, Any] = {"_reserve_sent_s": {}, "_committed_s": {}, "_finished": set(), "_failed": set()}
        counts = dict.fromkeys(("loaded", "failed", "cancelled", "fences", "verified", "mismatched", "unverifiable"), 0)
        vars(self).update(fakes | own | state, _totals=counts, _report=DecodeReport(), _introduction=Introduction())
        vars(self).update(_lock=nullcontext(), _consumer=self.machine, _gather=self.gather, _record=_an_event)
        self.flush()

    def flush(self) -> None:
        self._make_engines()
        self._flush()


def _an_event() -> bool:
    return True


class Zeroing:
    """Requests whose blocks the device zeroes in the step under way."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def watch(self, _event: object, request_ids: list[str]) -> None:
        self.requests += request_ids


class Engines:
    def __init__(self, fences: list[str]) -> None:
        self.fences = fences

    def fence(self, engine: str) -> None:
        self.fences.append(engine)

    def want(self, _domain: int) -> None:
        pass
