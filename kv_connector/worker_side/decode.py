"""The decode worker: tells prefill ranks where to write, and vLLM when the KV is there."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.control.loop import ControlLoop, PeerKey
from baton.kv_connector.control.wake import Waker, wake_path
from baton.kv_connector.engine.base import EngineFactory
from baton.kv_connector.errors import ProtocolError
from baton.kv_connector.handoff.consumer import CANCELLED, Consumer
from baton.kv_connector.handoff.gather import Gather
from baton.kv_connector.handoff.incoming import ConsumerTransfer, Resolved
from baton.kv_connector.handoff.metadata import DecodeReport, DecodeStep, Ending
from baton.kv_connector.layout.tp_mapping import transfer_id_of_flow
from baton.kv_connector.protocol.messages import Reserve, decode, encode
from baton.kv_connector.protocol.verification import differences, mismatch
from baton.kv_connector.telemetry.refusals import Refusals
from baton.kv_connector.worker_side.describing import describe
from baton.kv_connector.worker_side.digest import BlockDigests
from baton.kv_connector.worker_side.digesting import DigestThread, Part, blocks_of
from baton.kv_connector.worker_side.landing import Arrived, Landing
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.receive_engines import ReceivingEngines
from baton.kv_connector.worker_side.sync import DeviceEvent, Record
from baton.kv_connector.worker_side.take_outputs import take_outputs
from baton.kv_connector.worker_side.waiter import DeviceWaiter

logger = logging.getLogger(__name__)

TICK_S = 0.1


class DecodeWorker:
    """Everything of a decode rank: state machine, receiving engines, control channel."""

    def __init__(
        self,
        *,
        config: ConnectorConfig,
        secret: ClusterSecret,
        introduction: RankDescriptor,
        engines: EngineFactory,
        incarnation: int,
        record: Record,
        digests: BlockDigests,
        device: DeviceEvent | None = None,
        enter_device: Callable[[], None] = lambda: None,
    ) -> None:
        """Allocate; `start` starts the threads. `device`: see `Landing`; `None` where an acknowledged write is complete."""
        caches = introduction.caches
        self._introduction = introduction
        self._record = record
        self._lock = threading.Lock()
        self._refusals = Refusals(logger)
        self._consumer = Consumer(
            incarnation=incarnation,
            domains=config.transfer.receive_engines,
            settings=config.transfer,
            pool_blocks=caches.num_blocks,
            hello=introduction.hello,
            check_compatible=introduction.check_compatible,
            refused=self._refusals.count,
        )
        self._gather = Gather(self._consumer)
        self._digests: DigestThread[tuple[ConsumerTransfer, list[Part]]] = DigestThread(
            digests, self._compared, enter_device
        )
        self._engines = ReceivingEngines(engines, list(caches.spans), added=self._engine_added, fenced=self._fenced)
        self._zeroing: DeviceWaiter[list[str]] = DeviceWaiter(
            "baton-zeroed",
            enter_device=enter_device,
            passed=self._zeroed,
            failed=self._give_up,
            patience_s=config.transfer.transfer_timeout_s,
        )
        self._landing = (
            Landing(
                device,
                landed=self._landed,
                lost=self._lost,
                enter_device=enter_device,
                patience_s=config.transfer.transfer_timeout_s,
            )
            if device is not None
            else None
        )
        self._loop = ControlLoop(self, TICK_S, secret=secret, refusals=self._refusals)
        self._waker = Waker(wake_path(config.engine_dir))
        self._finished: set[str] = set()  # requests that vLLM waits for, resolved since it last asked
        self._failed: set[str] = set()  # those of them whose KV must not be used
        self._report = DecodeReport()
        self._reserve_sent_s: dict[str, float] = {}  # transfer id → monotonic, until the transfer is resolved
        self._committed_s: dict[str, float] = {}  # the same for the commit of a transfer that is being verified
        self._totals = dict.fromkeys(
            ("loaded", "failed", "cancelled", "fences", "verified", "mismatched", "unverifiable"), 0
        )

    def start(self) -> None:
        self._waker.start()
        self._engines.start()
        for domain in self._consumer.domains.missing():
            self._engines.want(domain)
        self._zeroing.start()
        if self._landing:
            self._landing.start()
        self._digests.start()
        self._loop.start()

    def stop(self) -> None:
        self._zeroing.stop()
        self._loop.stop()
        self._engines.stop()
        if self._landing:
            self._landing.stop()
        self._digests.stop()
        self._waker.stop()

    # --- model thread ---

    def begin_step(self, step: DecodeStep) -> None:
        """A step begins: everything before this point has been issued to the device, block zeroing included (I6)."""
        if not (step.watched or step.reserved or step.cancelled):
            return
        now = time.monotonic()
        with self._lock:
            for transfer_id, request_id, peers, grids in step.watched:
                flows = self._introduction.flows_to(transfer_id, grids, peers)
                self._gather.watch(transfer_id, request_id, flows, self._introduction.shares_from(grids), now)
            self._consumer.announce()
            for request_id, epoch, wish in step.reserved:
                self._gather.prepare(request_id, epoch, wish, now)
            for request_id in step.cancelled:
                self._gather.cancel(request_id, now)
            self._flush()
        if step.reserved:
            self._reserve_after_zeroing([reserved.request_id for reserved in step.reserved])

    def take_results(self) -> tuple[set[str], set[str]]:
        """Requests whose receive has ended, and those of them that failed; each once."""
        with self._lock:
            finished, failed = self._finished, self._failed
            self._finished, self._failed = set(), set()
        return finished, failed

    def take_report(self) -> DecodeReport | None:
        with self._lock:
            report, self._report = self._report, DecodeReport()
        return report or None

    # --- control thread (ControlHandler) ---

    def on_payload(self, peer: PeerKey, payload: bytes) -> None:
        try:
            message = decode(payload)
        except ProtocolError as exc:
            self._refusals.count(exc.kind, exc)
            return
        with self._lock:
            self._consumer.receive(str(peer[1]), message, time.monotonic())
            self._flush()

    def on_tick(self) -> None:
        with self._lock:
            self._consumer.tick(time.monotonic())
            self._flush()
        self._zeroing.give_up(time.monotonic())
        if self._landing:
            self._landing.give_up(time.monotonic())

    def on_disconnect(self, peer: PeerKey) -> None:
        """A hint: whether the peer is alive shows when it is asked."""
        with self._lock:
            self._consumer.disconnected(str(peer[1]), time.monotonic())
            self._flush()

    # --- the engines' thread ---

    def _engine_added(self, domain: int, session: str) -> None:
        with self._lock:
            self._consumer.engine_added(domain, session)
            self._flush()

    def _fenced(self, session: str) -> None:
        with self._lock:
            self._totals["fences"] += 1
            self._consumer.fenced(session)
            self._flush()

    # --- any thread ---

    def cancel(self, transfer_ids: list[str]) -> int:
        """End transfers that are no longer wanted; a request that still waits computes its prompt. How many were open?"""
        now = time.monotonic()
        with self._lock:
            known = [request for transfer_id in transfer_ids if (request := self._gather.request_of(transfer_id))]
            for request_id in known:
                self._gather.cancel(request_id, now)
            self._flush()
        return len(known)

    def snapshot(self) -> dict[str, Any]:
        now = time.monotonic()
        with self._lock:
            return {
                "control_address": "",
                **describe(self._consumer, now),
                "totals": dict(self._totals),
                "refused": self._refusals.snapshot(),
            }

    def _reserve_after_zeroing(self, request_ids: list[str]) -> None:
        event = self._record()
        if event is None:
            self._zeroed(request_ids, time.monotonic())
        else:
            self._zeroing.watch(event, request_ids)

    def _zeroed(self, request_ids: list[str], at_s: float) -> None:
        with self._lock:
            self._gather.zeroed(request_ids, at_s)
            self._flush()

    def _give_up(self, request_ids: list[str], reason: str) -> None:
        now = time.monotonic()
        with self._lock:
            for request_id in request_ids:
                self._gather.cancel(request_id, now, f"{reason} before the decode node's blocks were zeroed")
            self._flush()

    def _flush(self) -> None:
        """Pass on everything that the machine has produced. Called with the lock held."""
        consumer, gather = self._consumer, self._gather
        gather.collect(time.monotonic())
        if gather.resolved or gather.started or gather.closed:
            self._waker.wake()
        for peer, message in take_outputs(consumer.outbox):
            self._loop.send(("dial", peer), encode(message))
            if isinstance(message.body, Reserve):
                self._reserve_sent_s.setdefault(transfer_id_of_flow(message.body.transfer_id), time.monotonic())
        for peer in take_outputs(consumer.forgotten):
            self._loop.forget(("dial", peer))
        resolved = take_outputs(gather.resolved)
        to_verify = [(transfer, self._committed(transfer)) for transfer in take_outputs(consumer.to_verify)]
        arrived = Arrived(to_verify, [one for one in resolved if one.ok], take_outputs(gather.closed))
        for one in resolved:
            if not one.ok:
                self._resolve(one)  # it needs nothing of the device: it recomputes in other blocks
        if arrived and self._landing:
            self._landing.hold(arrived)
        else:
            self._deliver(arrived)
        self._report.started.update(take_outputs(gather.started))
        for session in take_outputs(consumer.fences):
            self._engines.fence(session)
        for domain in consumer.domains.missing():
            self._engines.want(domain)

    def _deliver(self, arrived: Arrived) -> None:
        """Make use of what the device has. Called with the lock held."""
        for transfer, parts in arrived.to_verify:
            self._digests.ask((transfer, parts), parts)
        for resolved in arrived.resolved:
            self._resolve(resolved)
        self._report.closed += arrived.closed

    def _landed(self, arrived: Arrived) -> None:
        """The device has what was acknowledged (the thread of `Landing`)."""
        with self._lock:
            self._deliver(arrived)
            self._waker.wake()

    def _lost(self, arrived: Arrived, reason: str) -> None:
        """Use nothing of it and give no block back, since writes may still be queued; after a time-out `Landing` gives them back later."""
        with self._lock:
            for transfer, _ in arrived.to_verify:
                self._consumer.verified(transfer, reason)
            for resolved in arrived.resolved:
                self._resolve(resolved._replace(ok=False, reason=reason, commit=None))
            self._flush()
        logger.error("%d requests' blocks stay out of the pool: %s", len(arrived.closed), reason)

    def _committed(self, transfer: ConsumerTransfer) -> list[Part]:
        """Return what of our KV a transfer that is to be verified wrote."""
        assert transfer.wish is not None  # it was reserved
        self._committed_s[transfer_id_of_flow(transfer.transfer_id)] = time.monotonic()
        return self._introduction.written_to(transfer.wish, self._consumer.hellos[transfer.peer])

    def _resolve(self, resolved: Resolved) -> None:
        commit, reason = resolved.commit, resolved.reason
        self._totals["cancelled" if reason == CANCELLED else "loaded" if resolved.ok else "failed"] += 1
        if not resolved.ok:  # whether or not the peer has said why
            self._report.failed[resolved.request_id] = reason
        self._report.endings[resolved.request_id] = Ending(
            at_s=self._committed_s.pop(resolved.transfer_id, time.monotonic()),  # what verifying takes is D's own
            reserve_sent_s=self._reserve_sent_s.pop(resolved.transfer_id, None) if resolved.reserved else None,
            committed=commit is not None,
            timings_s=commit.timings_s if commit else {},
            pushing_s=commit.pushing_s if commit else 0.0,
            cached_tokens=commit.cached_tokens if commit else 0,
        )
        if commit is not None and commit.first is not None:
            self._report.first_tokens[resolved.request_id] = commit.first
        if resolved.reserved:  # vLLM waits for it
            self._finished.add(resolved.request_id)
            if not resolved.ok:
                self._failed.add(resolved.request_id)

    def _compared(self, arrived: tuple[ConsumerTransfer, list[Part]], digests: bytes) -> None:
        """The digests of what arrived are there (their own thread): compare them with those of what P read."""
        transfer, compared = arrived
        commit = transfer.commit
        assert commit is not None  # it is being verified
        names = [self._introduction.caches.regions[i].name for part in compared for i in part.regions]
        regions = differences(names, digests, commit.digests)
        problem = mismatch(regions, blocks_of(compared)) if digests else "the digests could not be computed"
        verdict = "verified" if not regions else "mismatched" if digests else "unverifiable"
        with self._lock:
            waited_for = self._consumer.verified(transfer, problem if regions else "", mismatch=verdict == "mismatched")
            self._totals[verdict] += waited_for
            self._flush()
        if waited_for and regions:
            logger.error("transfer %s of %s: %s", transfer.transfer_id, transfer.peer, problem)
