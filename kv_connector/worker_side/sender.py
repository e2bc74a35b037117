"""The thread that pushes.

It hears of each layer once the device has written it, asks the state machine what may be pushed, submits, and looks
after what is under way. It sleeps between looks: Mooncake's own waiting calls burn a core that the prefill needs. It
never waits for a device, a `DeviceWaiter` does: a GPU is late by a whole forward pass, and in that time pushes end,
others become possible, and decode ranks ask for more.
"""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

from baton.kv_connector.engine.base import Push as EnginePush
from baton.kv_connector.engine.base import SendingEngine
from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.outgoing import Push
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.pushing import GroupPair
from baton.kv_connector.layout.copy_plan import CopyPlan, plan_units
from baton.kv_connector.layout.pairing import Pairing, RegionPair
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sync import Handover
from baton.kv_connector.worker_side.waiter import DeviceWaiter

logger = logging.getLogger(__name__)

CALLS_UNDER_WAY = 2  # full calls' bytes per decode rank keep its link busy; what is under way cannot be called back
PATIENCE = 0.05  # of the time that the oldest push to a peer has taken so far is slept before the next look at it
MIN_SLEEP_S = 0.0003
MAX_SLEEP_S = 0.02
WORTH_BYTES = 256 << 10  # less is not worth a call of its own, about 0.1 ms of this thread and of the model's GIL


@dataclass(slots=True)
class _UnderWay:
    push: Push
    call: EnginePush
    bytes: int
    since: float  # s, monotonic


class _Written(NamedTuple):
    handover: Handover
    at_s: float  # monotonic; when the device had written the layers


class Sender:
    """Owns the sending engine and the thread that uses it."""

    def __init__(
        self,
        *,
        producer: Producer,
        fan_out: FanOut,
        introduction: RankDescriptor,
        lock: threading.Lock,
        engine: SendingEngine,
        max_bytes: int,
        max_descriptors: int,
        flush: Callable[[], None],
        enter_device: Callable[[], None],
        patience_s: float,
    ) -> None:
        """Make it; `start` starts the thread, which alone uses `engine`.

        `producer`, and `fan_out` in front of it, are touched under `lock` only; `flush`, which sends what they have to
        say, is called with it held. `max_bytes` and `max_descriptors` bound one push call. `patience_s`: how long the
        device may take from one layer to the next.
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
        self._flush = flush
        self._enter_device = enter_device
        self._waiter: DeviceWaiter[Handover] = DeviceWaiter(
            "baton-written", enter_device=enter_device, passed=self._written, failed=self._lost, patience_s=patience_s
        )
        self._inbox: queue.SimpleQueue[_Written | None] = queue.SimpleQueue()
        self._under_way: list[_UnderWay] = []
        self._pairings: dict[int, Pairing] = {}  # by incarnation of a decode rank
        self._max_units_to: dict[int, int] = {}  # likewise
        self._ended_s: dict[int, float] = {}  # when the last push to a decode rank ended, and the next had the link
        self._awake = False  # a wake-up waits in the inbox: any number of them is one
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="baton-sender", daemon=True)
        self.totals = {"pushes": 0, "failed_pushes": 0, "bytes": 0, "descriptors": 0}

    def start(self) -> None:
        self._waiter.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop the threads; what is under way is left to the engine."""
        self._stopping = True
        self.wake()
        self._waiter.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def hand(self, handover: Handover) -> None:
        """Layers have been issued (model thread)."""
        if handover.done is None:
            self._written(handover, time.monotonic())
        else:
            self._waiter.watch(handover.done, handover)

    def layers_at_once(self, blocks: int) -> int:
        """Return how many layers, in a step of so many blocks, are together worth a call (model thread)."""
        return max(1, ceil(WORTH_BYTES / max(1, blocks * self._layer_block_bytes)))

    def give_up(self, now: float) -> None:
        """Void the prompts whose layers the device does not get to (control thread)."""
        self._waiter.give_up(now)

    def wake(self) -> None:
        """There may be something to push (control thread)."""
        if not self._awake:
            self._awake = True
            self._inbox.put(None)

    def _written(self, handover: Handover, at_s: float) -> None:
        """The device has written layers (model thread, waiter)."""
        self._inbox.put(_Written(handover, at_s))

    def _lost(self, handover: Handover, reason: str) -> None:
        """The device has not written layers, and what it will do is not known (waiter, control thread)."""
        with self._lock:
            for prompt in handover.prompts:
                self._fan_out.void(prompt.request_id, reason, time.monotonic())
            self._flush()

    def _run(self) -> None:
        try:
            self._enter_device()  # the engine reads its memory in this thread
        except Exception:
            logger.exception("the sender's thread cannot use the device")
        while not self._stopping:
            try:
                self._take_in(self._wait())
                self._look_after()
                self._submit()
            except Exception:
                # A thread boundary: whatever it is, the node must go on answering its peers.
                logger.exception("the sender failed in a way that it did not foresee")

    def _wait(self) -> list[_Written]:
        """Sleep until something is written or a push should be done; return everything that has been written."""
        written: list[_Written] = []
        try:
            item = self._inbox.get(timeout=self._sleep_s() if self._under_way else None)
            while True:
                if item is None:
                    self._awake = False  # before the machine is asked: what comes up from now on wakes again
                else:
                    written.append(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return written

    def _sleep_s(self) -> float:
        """How long until the next look: short beside what the push that is nearest to its end has taken."""
        begun = {item.push.transfer.decode: item.since for item in reversed(self._under_way)}  # the oldest to each
        latest = max(max(since, self._ended_s.get(decode, 0.0)) for decode, since in begun.items())
        return min(max(PATIENCE * (time.monotonic() - latest), MIN_SLEEP_S), MAX_SLEEP_S)

    def _take_in(self, written: list[_Written]) -> None:
        for handover, at_s in written:
            with self._lock:
                for prompt in handover.prompts:
                    for layer in handover.layers:
                        self._fan_out.ready(prompt.request_id, layer, prompt.ready_blocks, at_s)

    def _look_after(self) -> None:
        for item in list(self._under_way):
            ok = _poll(item.call)
            if ok is None:
                continue
            now = time.monotonic()
            self._under_way.remove(item)
            self._ended_s[item.push.transfer.decode] = now
            self.totals["pushes" if ok else "failed_pushes"] += 1
            if ok:
                self.totals["bytes"] += item.bytes
            with self._lock:
                self._producer.push_done(item.push, ok, now)
                self._flush()

    def _submit(self) -> None:
        while True:
            busy = self._busy()
            with self._lock:
                push = self._producer.next_push(self._units_to, busy)
                if push is None:
                    return
                self._producer.push_begun(push, time.monotonic())
            self._begin(push)

    def _busy(self) -> set[int]:
        """Decode ranks that enough is under way to: what is cannot be called back."""
        sizes: Counter[int] = Counter()
        for item in self._under_way:
            sizes[item.push.transfer.decode] += item.bytes
        return {decode for decode, size in sizes.items() if size >= CALLS_UNDER_WAY * self._max_bytes}

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
        pairing = self._pairings[push.transfer.decode]
        transfer = push.transfer
        ranges: dict[tuple[GroupPair, int, int], list[RegionPair]] = {}
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

    def _units_to(self, decode: int) -> int:
        """How many units a call to a decode rank may have, under the lock; when it is met, those that have gone are forgotten."""
        if decode not in self._pairings:
            living = self._producer.sessions.keys()
            try:
                pairing = self._introduction.pairing(self._producer.hello_of(decode))
            except Exception:  # the call will fail of it, and others go on
                logger.exception("decode rank %d cannot be paired", decode)
                return self._max_units
            copies = max([sum(pair.copies for pair in pairing.of_layer(layer)) for layer in pairing.layers], default=1)
            self._pairings[decode] = pairing
            self._max_units_to[decode] = min(self._max_units, self._units_at_once(self._layer_block_bytes, copies))
            of_peers: tuple[dict[int, Any], ...] = self._pairings, self._max_units_to, self._ended_s
            for known in of_peers:
                for gone in known.keys() - living - {decode}:
                    del known[gone]
        return self._max_units_to[decode]


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
