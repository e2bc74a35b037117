"""The decode rank's side of every transfer.

    watch ─► WATCHING ─ prepare ─► PREPARED ─ zeroed, session open ─► RESERVED ─ Commit ──────► closed
                                                   │                     ├─ Commit with digests ─► VERIFYING ─► closed
                                                   │                     ├─ Fail(clean) ──────► closed
                                                   │                     ├─ cancel, time-out ─► REVOKING ─ answer ─► closed
                                                   │                     └─ Fail(dirty), peer lost ─► DIRTY ─ fence ─► closed
                                                   └─ cancel: nothing was sent, closed

Two things are told apart. The *request* is resolved once (`resolved`: KV complete, or failed so that it recomputes, or
no client waits any more), as early as possible. The *blocks* are given back once (`closed`), only when no write can
come any more (I3). Further outputs: `outbox`, `started`, `fences` (engines to destroy), `forgotten` (peers to hang up
on), `to_verify` (committed transfers whose digests are to be compared).

Longer than other files: the state machine is one table of events, and its invariants hold between all of them.
"""

from collections.abc import Callable
from itertools import count

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.handoff.fencing import FenceDomains
from baton.kv_connector.handoff.incoming import BlockReservation, ConsumerTransfer, Phase, Resolved
from baton.kv_connector.handoff.session import Session, SessionState
from baton.kv_connector.protocol.messages import (
    MAX_OPEN,
    Beat,
    Body,
    Commit,
    Fail,
    Hello,
    Introduce,
    Message,
    OpenEpoch,
    Refuse,
    Reserve,
    Revoke,
    Started,
)
from baton.kv_connector.telemetry.refusals import Refused

MAX_DECLINED = 256  # of one peer that does not answer
CANCELLED = "cancelled"  # the reason when no client waits any more


class Consumer:
    """All transfers of one decode rank."""

    def __init__(
        self,
        *,
        incarnation: int,
        domains: int,
        settings: TransferConfig,
        pool_blocks: int,
        hello: Callable[[], Hello],
        check_compatible: Callable[[Hello], str],
        refused: Callable[[Refused], None],
    ) -> None:
        """Make the machine; it knows no peer yet.

        Args:
            incarnation: 63 random bits naming this process.
            domains: number of fence domains.
            settings: Time-outs, which affect liveness, never safety.
            pool_blocks: size of the pool on this node.
            hello: Makes our introduction.
            check_compatible: Returns why a peer's introduction cannot be accepted, or "".
            refused: Told of each message that is not acted on.
        """
        self.incarnation = incarnation
        self.sessions: dict[str, Session] = {}
        self.hellos: dict[str, Hello] = {}  # of the peers that were accepted
        self.transfers: dict[str, ConsumerTransfer] = {}
        self.domains = FenceDomains(domains)
        self.outbox: list[tuple[str, Message]] = []
        self.resolved: list[Resolved] = []
        self.closed: list[str] = []  # request ids
        self.started: list[str] = []  # transfer ids
        self.fences: list[str] = []
        self.forgotten: list[str] = []
        self.to_verify: list[ConsumerTransfer] = []
        self._settings = settings
        self._pool_blocks = pool_blocks
        self._hello = hello
        self._check_compatible = check_compatible
        self._count = refused
        self._sequence = count(1)
        self._ids: dict[str, str] = {}  # request id → transfer id
        self._next_beat = 0.0
        self._unannounced: set[str] = set()  # peers with a transfer that they have not been told of
        self._declined: dict[str, dict[str, None]] = {}  # peer → transfers to revoke until it has answered

    # --- what the scheduler and the device say -------------------------------------------------------------------

    def watch(self, transfer_id: str, request_id: str, peer: str, now: float, shards: int = 1) -> None:
        """A request that wants this transfer's KV has arrived; it has so many transfers, one from each of P's ranks."""
        if known := self.transfers.get(transfer_id):
            if known.request_id != request_id:
                self._count(Refused.REUSED_ID)
                self.resolved.append(
                    Resolved(request_id, transfer_id, False, False, "another request has this transfer id", None)
                )
            return
        if len(self.transfers) >= MAX_OPEN and len(self._of(peer)) >= MAX_OPEN:
            self.resolved.append(Resolved(request_id, transfer_id, False, False, "too many transfers are open", None))
            return
        self._forget_declined(peer, transfer_id)
        self.transfers[transfer_id] = ConsumerTransfer(transfer_id, request_id, peer, now, shards)
        self._ids[request_id] = transfer_id
        session = self._dial(peer, now)
        if session.state is SessionState.REFUSED:
            self._resolve(self.transfers[transfer_id], f"refused by the prefill node: {session.reason}")
            self._close(self.transfers[transfer_id])
        else:
            self._unannounced.add(peer)

    def announce(self) -> None:
        """Tell the peers of newly watched transfers, all of a step at once: a beat lists everything that is open."""
        for peer in self._unannounced & self.sessions.keys():
            self._send_beat(peer)
        self._unannounced.clear()

    def prepare(self, request_id: str, epoch: int, wish: BlockReservation, now: float) -> None:
        """Blocks are allocated. RESERVE goes out once `zeroed` was called and the session is open."""
        transfer = self._by_request(request_id)
        if transfer is None:
            # It failed while the scheduler was allocating: say so, nothing was sent.
            self.resolved.append(Resolved(request_id, "", False, True, "the transfer had already failed", None))
            self.closed.append(request_id)
            return
        assert transfer.phase is Phase.WATCHING, "a request is prepared once"
        assert epoch > 0, "0 means that nothing is reserved"
        transfer.phase, transfer.epoch, transfer.wish, transfer.since = Phase.PREPARED, epoch, wish, now

    def zeroed(self, request_ids: list[str], now: float) -> None:  # noqa: ARG002  # the shape of an event
        """Everything the device had queued when the blocks were allocated has completed (I6)."""
        for request_id in request_ids:
            if transfer := self._by_request(request_id):
                transfer.zeroed = True
                self._reserve(transfer)

    def cancel(self, request_id: str, now: float, reason: str = CANCELLED) -> None:
        """No request waits for this KV any more, all of it is already here, or it cannot be received."""
        if transfer := self._by_request(request_id):
            self._resolve(transfer, reason)
            self._revoke(transfer, now)

    def verified(self, transfer: ConsumerTransfer, problem: str = "", *, mismatch: bool = False) -> bool:
        """The digests have been compared: there is no problem, or the KV must not be used. P hears of a mismatch.

        False: the request had ended before, and the blocks may have been another's when they were read.
        """
        if self.transfers.get(transfer.transfer_id) is not transfer:
            return False
        if mismatch:  # for P's logs: lost with the session, never repeated
            self._send(transfer, Revoke(transfer_id=transfer.transfer_id, epoch=transfer.epoch, mismatch=problem))
        self._resolve(transfer, problem, commit=transfer.commit)
        self._close(transfer)
        return True

    # --- what the receiving engines say --------------------------------------------------------------------------

    def engine_added(self, domain: int, engine: str) -> None:
        self.domains.add(domain, engine)
        for transfer in list(self.transfers.values()):
            self._reserve(transfer)

    def fenced(self, engine: str) -> None:
        """The engine has been destroyed: nothing written through it can land any more."""
        self.domains.fenced(engine)
        for transfer in list(self.transfers.values()):
            if transfer.engine == engine:
                self._resolve(transfer, "the receiving engine was fenced")
                self._close(transfer)

    # --- what the network and the clock say ----------------------------------------------------------------------

    def receive(self, peer: str, message: Message, now: float) -> None:
        session = self.sessions.get(peer)
        if session is None:
            self._count(Refused.STRANGER)
            return
        restarted = session.is_restart(message) and isinstance(message.body, Hello | Refuse | Introduce)
        if refusal := session.accept(message, now):
            self._count(refusal)
            return
        if restarted:
            self._lose_epochs(peer, "the prefill node restarted", now, restarted=True)
        match message.body:
            case Hello():
                self._greeted(peer, session, message.body)
            case Refuse():
                self._refused(peer, session, message.body.reason)
            case Introduce():
                session.state = SessionState.NEW
                self.outbox.append((peer, session.stamp(self._hello())))
            case Beat():
                self._answered(peer, message.body)
            case Started():
                self._started(message.body.transfer_id, peer)
            case Commit() | Fail():
                self._ended(message.body, peer, now)
            case _:
                self._count(Refused.UNEXPECTED)

    def disconnected(self, peer: str, now: float) -> None:
        """The connection to a prefill rank broke. A hint: one that lives answers a beat soon, over another one."""
        if session := self.sessions.get(peer):
            session.broken_since = now if session.broken_since is None else session.broken_since
            self._send_beat(peer)

    def tick(self, now: float) -> None:
        """Beat, give up what takes too long, and ask for fences that are due (I5)."""
        for peer, session in list(self.sessions.items()):
            self._check_peer(peer, session, now)
        for transfer in list(self.transfers.values()):
            self._check_transfer(transfer, now)
        self._check_fences(now)
        if now >= self._next_beat:
            self._next_beat = now + self._settings.beat_interval_s
            for peer in self.sessions:
                self._send_beat(peer)

    def quarantined_blocks(self) -> int:
        """Blocks of dirty epochs: lost to the pool until their fence."""
        dirty = [t.wish.blocks for t in self.transfers.values() if t.phase is Phase.DIRTY and t.wish]
        return len({(n, block) for blocks in dirty for n, group in enumerate(blocks) for block in group if block})

    # --- inside: sessions ----------------------------------------------------------------------------------------

    def _dial(self, peer: str, now: float) -> Session:
        session = self.sessions.get(peer)
        if session is None:
            session = self.sessions[peer] = Session(self.incarnation, self._sequence, now)
        return session

    def _greeted(self, peer: str, session: Session, hello: Hello) -> None:
        if reason := self._check_compatible(hello):
            self._count(Refused.INTRODUCTION)
            self._refused(peer, session, reason)
            return
        session.state = SessionState.OPEN
        self.hellos[peer] = hello
        self._send_beat(peer)
        for transfer in self._of(peer):
            self._reserve(transfer)

    def _refused(self, peer: str, session: Session, reason: str) -> None:
        session.state, session.reason = SessionState.REFUSED, reason
        self._declined.pop(peer, None)
        for transfer in self._of(peer):
            if transfer.phase <= Phase.PREPARED:
                self._resolve(transfer, f"refused: {reason}")
                self._close(transfer)

    def _check_peer(self, peer: str, session: Session, now: float) -> None:
        broken = session.broken_for(now) > self._settings.reconnect_timeout_s
        if not broken and session.silent_for(now) <= self._settings.peer_timeout_s:
            return
        self._lose_epochs(peer, "the prefill node does not answer", now)
        self._declined.pop(peer, None)
        if not any(self._of(peer)):
            del self.sessions[peer]
            self.hellos.pop(peer, None)
            self.domains.forget(peer)
            self.forgotten.append(peer)

    def _lose_epochs(self, peer: str, reason: str, now: float, *, restarted: bool = False) -> None:
        """The process is gone, its kernel may still be sending (E2). What it had not begun may be for its successor."""
        for transfer in self._of(peer):
            if restarted and transfer.phase <= Phase.PREPARED and not transfer.started:
                continue
            if transfer.phase is Phase.VERIFYING:
                continue  # committed: P is done with it
            self._resolve(transfer, reason)
            if transfer.phase <= Phase.PREPARED:
                self._close(transfer)
            else:
                self._taint(transfer, now)

    def _send_beat(self, peer: str) -> None:
        session = self.sessions[peer]
        if session.state is not SessionState.OPEN:
            self.outbox.append((peer, session.stamp(self._hello())))
            return
        listed = [t for t in self._of(peer) if t.phase not in (Phase.DIRTY, Phase.VERIFYING)]
        self.outbox.append((peer, session.stamp(Beat(open=[OpenEpoch(t.transfer_id, _on_wire(t)) for t in listed]))))
        for transfer in listed:
            if transfer.phase is Phase.REVOKING:
                self._send(transfer, Revoke(transfer_id=transfer.transfer_id, epoch=transfer.epoch))
        for transfer_id in self._declined.get(peer, ()):
            self.outbox.append((peer, session.stamp(Revoke(transfer_id=transfer_id, epoch=0))))

    def _answered(self, peer: str, body: Beat) -> None:
        """P lists the epochs that it knows; what it does not know was lost on the way."""
        known = set(body.open)
        for transfer in self._of(peer):
            if transfer.phase is Phase.RESERVED and (transfer.transfer_id, transfer.epoch) not in known:
                self._send_reserve(transfer)

    # --- inside: transfers ---------------------------------------------------------------------------------------

    def _reserve(self, transfer: ConsumerTransfer) -> None:
        session = self.sessions.get(transfer.peer)
        if transfer.phase is not Phase.PREPARED or not transfer.zeroed or session is None:
            return
        engine = self.domains.engine_for(transfer.peer)
        if session.state is SessionState.OPEN and engine is not None:
            transfer.phase, transfer.engine = Phase.RESERVED, engine
            self._send_reserve(transfer)

    def _send_reserve(self, transfer: ConsumerTransfer) -> None:
        wish = transfer.wish
        assert wish is not None  # set by prepare()
        self._send(
            transfer,
            Reserve(
                transfer_id=transfer.transfer_id,
                epoch=transfer.epoch,
                engine=transfer.engine,
                tokens=wish.tokens,
                from_token=wish.from_token,
                blocks=wish.blocks,
                prompt_hash=wish.prompt_hash,
            ),
        )

    def _started(self, transfer_id: str, peer: str) -> None:
        transfer = self.transfers.get(transfer_id)
        if transfer is not None and transfer.peer == peer and not transfer.started:
            transfer.started = True
            self.started.append(transfer_id)

    def _ended(self, body: Commit | Fail, peer: str, now: float) -> None:
        transfer = self.transfers.get(body.transfer_id)
        if transfer is None:
            self._forget_declined(peer, body.transfer_id)
        if transfer is None or transfer.peer != peer or body.epoch not in (0, transfer.epoch):
            return
        if transfer.phase <= Phase.PREPARED:
            # P gave up before it heard of a reservation: nothing was written.
            self._resolve(transfer, body.reason if isinstance(body, Fail) else "committed without a reservation")
            self._close(transfer)
        elif body.epoch == 0 or transfer.phase in (Phase.DIRTY, Phase.VERIFYING):
            pass  # about the time before the reservation; no longer to be trusted; said once more
        elif isinstance(body, Commit):
            self._committed(transfer, body)
        elif body.dirty:
            self._resolve(transfer, body.reason)
            self._taint(transfer, now)
        else:
            self._resolve(transfer, body.reason)
            self._close(transfer)

    def _committed(self, transfer: ConsumerTransfer, body: Commit) -> None:
        """Nothing more will be written. The KV may be used if it is this prompt's (I4, I7)."""
        wish = transfer.wish
        assert wish is not None  # RESERVED or REVOKING
        if (body.tokens, body.prompt_hash) != (wish.tokens, wish.prompt_hash):
            self._resolve(transfer, "the prefill node committed another prompt")
        elif body.shards != transfer.shards:
            self._resolve(transfer, f"the prefill node divides this rank's KV by {body.shards}, not {transfer.shards}")
        elif body.digests and not transfer.resolved:
            transfer.phase, transfer.commit, transfer.engine = Phase.VERIFYING, body, ""  # a fence is no concern of it
            self.to_verify.append(transfer)
            return
        else:
            self._resolve(transfer, "", commit=body)
        self._close(transfer)

    def _check_transfer(self, transfer: ConsumerTransfer, now: float) -> None:
        waited = now - transfer.since
        if transfer.phase is Phase.REVOKING:
            if now - transfer.revoked_at > self._settings.peer_timeout_s:
                self._taint(transfer, now)
        elif transfer.phase is not Phase.DIRTY and waited > self._settings.transfer_timeout_s:
            what = "not verified" if transfer.phase is Phase.VERIFYING else "no commit"
            self._resolve(transfer, f"{what} within {self._settings.transfer_timeout_s:g} s")
            self._revoke(transfer, now)

    def _revoke(self, transfer: ConsumerTransfer, now: float) -> None:
        if transfer.phase <= Phase.PREPARED:
            self._decline(transfer)
            self._close(transfer)
        elif transfer.phase is Phase.VERIFYING:
            self._close(transfer)  # the comparison still reads the blocks, which changes nothing
        elif transfer.phase is Phase.RESERVED:
            transfer.phase, transfer.revoked_at = Phase.REVOKING, now
            self._send(transfer, Revoke(transfer_id=transfer.transfer_id, epoch=transfer.epoch))

    def _decline(self, transfer: ConsumerTransfer) -> None:
        """Nothing was reserved, so the blocks wait for no answer; but P keeps the prompt until it hears of it."""
        session = self.sessions.get(transfer.peer)
        if session is None or session.state is SessionState.REFUSED:
            return
        self._send(transfer, Revoke(transfer_id=transfer.transfer_id, epoch=0))
        declined = self._declined.setdefault(transfer.peer, {})
        if len(declined) < MAX_DECLINED:  # if P hears of none of the others, it lets go of them itself, a little later
            declined[transfer.transfer_id] = None

    def _forget_declined(self, peer: str, transfer_id: str) -> None:
        declined = self._declined.get(peer, {})
        declined.pop(transfer_id, None)
        if not declined:
            self._declined.pop(peer, None)

    def _taint(self, transfer: ConsumerTransfer, now: float) -> None:
        transfer.phase = Phase.DIRTY
        self.domains.retire(transfer.engine, now)

    def _check_fences(self, now: float) -> None:
        crowded = self.quarantined_blocks() > self._settings.quarantine_max_share * self._pool_blocks
        for engine, since in self.domains.retired.items():
            healthy = any(t.engine == engine and t.phase is not Phase.DIRTY for t in self.transfers.values())
            due = crowded or not healthy or now - since >= self._settings.quarantine_max_s
            if due and engine not in self.domains.fencing:
                self.domains.fencing.add(engine)
                self.fences.append(engine)

    def _resolve(self, transfer: ConsumerTransfer, reason: str, commit: Commit | None = None) -> None:
        if not transfer.resolved:
            transfer.resolved = True
            reserved = transfer.phase >= Phase.PREPARED
            ok = commit is not None and not reason
            self.resolved.append(Resolved(transfer.request_id, transfer.transfer_id, ok, reserved, reason, commit))

    def _close(self, transfer: ConsumerTransfer) -> None:
        """End a transfer whose blocks may go back to the pool.

        They do by `closed`, `gather.py` (of all transfers of a request), `worker_side/decode.py` (`_deliver`, once the
        device has what was acknowledged), `DecodeScheduler.update` and `ReservationLedger.release`.
        """
        del self.transfers[transfer.transfer_id]
        self._ids.pop(transfer.request_id, None)
        if transfer.phase >= Phase.PREPARED:
            self.closed.append(transfer.request_id)

    def _of(self, peer: str) -> list[ConsumerTransfer]:
        return [t for t in self.transfers.values() if t.peer == peer]

    def _by_request(self, request_id: str) -> ConsumerTransfer | None:
        return self.transfers.get(self._ids.get(request_id, ""))

    def _send(self, transfer: ConsumerTransfer, body: Body) -> None:
        session = self.sessions.get(transfer.peer)
        if session is not None and session.state is SessionState.OPEN:
            self.outbox.append((transfer.peer, session.stamp(body)))


def _on_wire(transfer: ConsumerTransfer) -> int:
    """The epoch as P may know it: 0 until RESERVE was sent."""
    return transfer.epoch if transfer.phase >= Phase.RESERVED else 0
