"""`Consumer` with one guard taken out. Each class says which guard it lacks."""

import msgspec

from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.handoff.incoming import BlockReservation, ConsumerTransfer, Phase
from baton.kv_connector.handoff.session import Session
from baton.kv_connector.protocol.messages import Commit, Message, Revoke


class FreesWithoutFence(Consumer):
    """The blocks of a dirty epoch come back with the fence (I3); here at once."""

    def _taint(self, transfer: ConsumerTransfer, now: float) -> None:
        self._close(transfer)


class FreesOnRevoke(Consumer):
    """Revoked blocks come back when P has answered (I3); here at once."""

    def _revoke(self, transfer: ConsumerTransfer, now: float) -> None:
        if transfer.phase is Phase.RESERVED:
            self._send(transfer, Revoke(transfer_id=transfer.transfer_id, epoch=transfer.epoch))
            self._close(transfer)
        else:
            super()._revoke(transfer, now)


class TrustsALease(Consumer):
    """Time says nothing about writes (E2); here a revoke that stays unanswered for long frees the blocks."""

    def _check_transfer(self, transfer: ConsumerTransfer, now: float) -> None:
        if transfer.phase is Phase.REVOKING and now - transfer.revoked_at > self._settings.peer_timeout_s:
            self._close(transfer)
        else:
            super()._check_transfer(transfer, now)


class IgnoresRestart(Consumer):
    """What a dead P may still have in its kernel makes its epochs dirty (E2); here its successor inherits them."""

    def _lose_epochs(self, peer: str, reason: str, now: float, *, restarted: bool = False) -> None:
        if not restarted:
            super()._lose_epochs(peer, reason, now)


class IgnoresIncarnations(Consumer):
    """Mail for another process is not acted on; here every message is taken for ours."""

    def receive(self, peer: str, message: Message, now: float) -> None:
        """Forge the envelope."""
        session = self.sessions.get(peer)
        sender = session.peer if session and session.peer else message.sender
        super().receive(peer, message._replace(sender=sender, receiver=self.incarnation), now)


class ReservesBeforeZeroing(Consumer):
    """P hears of blocks when they have been zeroed (I6); here when they have been allocated."""

    def prepare(self, request_id: str, epoch: int, wish: BlockReservation, now: float) -> None:
        """Do not wait for the device."""
        super().prepare(request_id, epoch, wish, now)
        self.zeroed([request_id], now)


class TakesAnyCommit(Consumer):
    """A commit must be for this prompt (I7); here every one will do."""

    def _committed(self, transfer: ConsumerTransfer, body: Commit) -> None:
        self._resolve(transfer, "", commit=body)
        self._close(transfer)


class ResumesUnverified(Consumer):
    """A commit with digests is used once they have been compared; here at once."""

    def _committed(self, transfer: ConsumerTransfer, body: Commit) -> None:
        super()._committed(transfer, replace_digests(body))


class WaitsForEver(Consumer):
    """A transfer that takes too long is given up (I5); here it is waited for."""

    def _check_transfer(self, transfer: ConsumerTransfer, now: float) -> None:
        pass


class NeverFences(Consumer):
    """An engine with dirty epochs is destroyed in time (I5); here it is not."""

    def _check_fences(self, now: float) -> None:
        pass


class KeepsTheDead(Consumer):
    """A peer that is silent for long is given up (I5); here it is remembered for ever."""

    def _check_peer(self, peer: str, session: Session, now: float) -> None:
        pass


class IgnoresACrossing(Consumer):
    """A loss that crosses an allocation is told once more (I5); here the allocation is not answered."""

    def prepare(self, request_id: str, epoch: int, wish: BlockReservation, now: float) -> None:
        """Say nothing if the transfer is gone."""
        if self._by_request(request_id) is not None:
            super().prepare(request_id, epoch, wish, now)


class BelievesInFences(Consumer):
    """A fence is over when the engine is gone (I3, E3); here when it has been asked for."""

    def _check_fences(self, now: float) -> None:
        super()._check_fences(now)
        for engine in self.fences:
            self.fenced(engine)


class FencesEverything(Consumer):
    """A fence ends the writes through one engine (I3); here every epoch is given back with it."""

    def fenced(self, engine: str) -> None:
        for transfer in self.transfers.values():
            if transfer.engine:
                transfer.engine = engine
        super().fenced(engine)


def replace_digests(body: Commit) -> Commit:
    return msgspec.structs.replace(body, digests=b"")
