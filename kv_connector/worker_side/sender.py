"""The thread that pushes.

It waits for layers to be written, asks the state machine what may be pushed, submits, and looks after what is under
way. It sleeps between looks: Mooncake's own waiting calls burn a core that the prefill needs.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from kv_connector.engine.base import Push as EnginePush
from kv_connector.engine.base import SendingEngine
from kv_connector.handoff.fan_out import FanOut
from kv_connector.handoff.outgoing import Push
from kv_connector.handoff.producer import Producer
from kv_connector.handoff.pushing import Membership
from kv_connector.pairing import Pairing, RegionPair
from kv_connector.plan import CopyPlan, plan_units
from kv_connector.sync import Handover
from kv_connector.worker_side.introduction import Introduction
from kv_connector.worker_side.link import FIRST_GUESS_BYTES_PER_S, Link

logger = logging.getLogger(__name__)

# Per decode rank, so many calls or so much time of its link, whichever is more: enough to keep the link busy. What is
# under way cannot be called back.
CALLS_UNDER_WAY = 2
SECONDS_UNDER_WAY = 0.005
WORTH_S = 0.0005  # bytes that take less than this to send are not worth a call of their own


@dataclass(slots=True)
class _Peer:
    """A decode rank."""

    pairing: Pairing
    link: Link


@dataclass(slots=True)
class _UnderWay:
    push: Push
    call: EnginePush
    bytes: int
    since: float  # s, monotonic


class Sender:
    """Owns the sending engine and the thread that uses it."""

    def __init__(
        self,
        *,
        producer: Producer,
        fan_out: FanOut,
        introduction: Introduction,
        lock: threading.Lock,
        engine: SendingEngine,
        max_bytes: int,
        max_descriptors: int,
        flush: Callable[[], None],
    ) -> None:
        """Make it; `start` starts the thread.

        Args:
            producer: The state machine; touched under `lock` only.
            fan_out: In front of it; likewise.
            introduction: Knows our KV, and what of it a decode rank has too.
            lock: Shared with everybody who uses `producer`.
            engine: Used by this thread alone.
            max_bytes: Of one push call.
            max_descriptors: Of one push call.
            flush: Sends what the machine has to say; called with `lock` held.
        """
        caches = introduction.caches
        self._producer = producer
        self._fan_out = fan_out
        self._introduction = introduction
        self._lock = lock
        self._engine = engine
        self._max_bytes, self._max_descriptors = max_bytes, max_descriptors
        self._max_units = self._units_at_once(caches.layer_block_bytes, max(map(len, caches.by_layer())))
        self._layer_block_bytes = caches.layer_block_bytes
        self._block_tokens = caches.block_tokens
        self._flush = flush
        self._inbox: queue.SimpleQueue[Handover | None] = queue.SimpleQueue()
        self._under_way: list[_UnderWay] = []
        self._peers: dict[int, _Peer] = {}  # by incarnation
        self._awake = False  # a wake-up waits in the inbox: any number of them is one
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="baton-sender", daemon=True)
        self.totals = {"pushes": 0, "failed_pushes": 0, "bytes": 0, "descriptors": 0}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; what is under way is left to the engine."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def hand(self, handover: Handover) -> None:
        """Layers have been issued (model thread)."""
        self._inbox.put(handover)

    def layers_at_once(self, blocks: int) -> int:
        """Return how many layers to hand over together in a step that writes so many blocks (model thread).

        Layers too small to be worth a call go together with the next ones. They would take less than `WORTH_S` to
        send, on the slowest link, so that is the most by which this can delay a commit.
        """
        rate = min((peer.link.bytes_per_s for peer in self._peers.values()), default=FIRST_GUESS_BYTES_PER_S)
        return max(1, ceil(WORTH_S * rate / max(1, blocks * self._layer_block_bytes)))

    def wake(self) -> None:
        """There may be something to push (control thread)."""
        if not self._awake:
            self._awake = True
            self._inbox.put(None)

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._take_in(self._wait())
                self._look_after()
                self._submit()
            except Exception:
                # A thread boundary: whatever it is, the node must go on answering its peers.
                logger.exception("the sender failed in a way that it did not foresee")

    def _wait(self) -> list[Handover]:
        """Sleep until something is handed over or a push should be done; return everything handed over."""
        handed: list[Handover] = []
        try:
            item = self._inbox.get(timeout=self._sleep_s() if self._under_way else None)
            while True:
                if item is None:
                    self._awake = False  # before the machine is asked: what comes up from now on wakes again
                else:
                    handed.append(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return handed

    def _sleep_s(self) -> float:
        now = time.monotonic()
        oldest = {item.push.transfer.decode: item for item in reversed(self._under_way)}
        return min(self._link(decode).sleep_s(item.bytes, item.since, now) for decode, item in oldest.items())

    def _take_in(self, handed: list[Handover]) -> None:
        for handover in handed:
            now = time.monotonic()
            if not _completed(handover):
                with self._lock:
                    for prompt in handover.prompts:
                        self._fan_out.void(prompt.request_id, "the device failed", now)
                    self._flush()
                continue
            with self._lock:
                for prompt in handover.prompts:
                    for layer in handover.layers:
                        self._fan_out.ready(prompt.request_id, layer, prompt.ready_blocks, now)

    def _look_after(self) -> None:
        for item in list(self._under_way):
            ok = _poll(item.call)
            if ok is None:
                continue
            self._under_way.remove(item)
            self._count(item, ok)
            with self._lock:
                self._producer.push_done(item.push, ok, time.monotonic())
                self._flush()

    def _count(self, item: _UnderWay, ok: bool) -> None:
        self.totals["pushes" if ok else "failed_pushes"] += 1
        if ok:
            self.totals["bytes"] += item.bytes
            self._link(item.push.transfer.decode).end(item.bytes, item.since, time.monotonic())

    def _submit(self) -> None:
        while True:
            busy = self._busy()
            with self._lock:
                push = self._producer.next_push(self._max_units, busy)
                if push is None:
                    return
                self._producer.push_begun(push, time.monotonic())
            self._begin(push)

    def _busy(self) -> set[int]:
        """Decode ranks whose links have enough to do."""
        calls: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for item in self._under_way:
            calls[item.push.transfer.decode] += 1
            sizes[item.push.transfer.decode] += item.bytes
        return {
            decode
            for decode, peer in self._peers.items()
            if calls[decode] >= CALLS_UNDER_WAY and sizes[decode] >= SECONDS_UNDER_WAY * peer.link.bytes_per_s
        }

    def _begin(self, push: Push) -> None:
        reservation = push.transfer.reservation
        assert reservation is not None  # the machine hands out pushes of reserved transfers only
        now = time.monotonic()
        try:
            plan = self._plan(push)
            call = self._engine.submit(reservation.engine, plan)
        except Exception:  # whatever it is, the push has been counted as under way and must be counted as ended
            logger.exception("transfer %s cannot be pushed", push.transfer.transfer_id)
            call, plan = _Refused(), CopyPlan((), 0)
        self.totals["descriptors"] += len(plan)
        self._under_way.append(_UnderWay(push, call, plan.total_bytes, now))

    def _plan(self, push: Push) -> CopyPlan:
        """Turn pieces into copies, planning layers that share a range of units once."""
        pairing = self._peer(push.transfer.decode).pairing
        transfer = push.transfer
        ranges: dict[tuple[Membership, int, int], list[RegionPair]] = {}
        for layer, start, stop in push.pieces:
            ranges.setdefault((transfer.terms.group_of(layer), start, stop), []).extend(pairing.of_layer(layer))
        return CopyPlan.joined(
            [
                plan_units(regions, *transfer.units(pairing.unit_tokens, group).lie(start, stop))
                for (group, start, stop), regions in ranges.items()
            ]
        )

    def _units_at_once(self, unit_bytes: int, copies: int) -> int:
        """How many units of a layer one call may have, at so many copies a unit."""
        return max(1, min(self._max_bytes // unit_bytes, self._max_descriptors // copies))

    def _link(self, decode: int) -> Link:
        peer = self._peers.get(decode)
        return peer.link if peer else Link()  # gone meanwhile, or never met: nothing is known

    def _peer(self, decode: int) -> _Peer:
        if decode not in self._peers:
            with self._lock:
                hello = self._producer.hello_of(decode)
                living = set(self._producer.sessions)
            pairing = self._introduction.pairing(hello)
            copies = max([sum(pair.copies for pair in pairing.of_layer(layer)) for layer in pairing.layers], default=1)
            self._max_units = min(self._max_units, self._units_at_once(self._layer_block_bytes, copies))
            known = {peer: state for peer, state in self._peers.items() if peer in living}
            self._peers = known | {decode: _Peer(pairing, Link())}
        return self._peers[decode]


def _completed(handover: Handover) -> bool:
    """Wait until the layers are written; False if the device says that they never will be."""
    try:
        if handover.done is not None:
            handover.done.synchronize()
    except Exception:  # whatever a device raises: what it did not finish must not travel
        logger.exception("an event of the model stream failed")
        return False
    return True


def _poll(call: EnginePush) -> bool | None:
    try:
        return call.poll()
    except Exception:  # a push whose state cannot be told may go on writing: it has failed, dirty
        logger.exception("a push cannot be looked after")
        return False


class _Refused:
    """A push that was never begun."""

    def poll(self) -> bool | None:
        return False
