"""The machines with one guard taken out. The explorer must find each: that shows that it would see a bug there.

Each class says which guard it lacks.
"""

from dataclasses import replace
from typing import NamedTuple

import msgspec

from kv_connector.handoff.consumer import Consumer, Incoming, Phase, Wish
from kv_connector.handoff.producer import UNWANTED, Outgoing, Producer, Push
from kv_connector.handoff.session import Session
from kv_connector.handoff.tombstones import Tombstones
from kv_connector.protocol import Commit, Fail, Message, Reserve, Revoke
from tests.explorer.scope import Scope

# --- P ---------------------------------------------------------------------------------------------------------------


class RetriesDirty(Producer):
    """A failed push makes the epoch dirty; here it is pushed again and committed (E1)."""

    def push_done(self, push: Push, ok: bool, now: float) -> None:
        """Hand the blocks of a failed push out again."""
        coverage = push.transfer.coverage
        if ok or push.transfer.ending or coverage is None:
            super().push_done(push, ok, now)
            return
        push.transfer.in_flight -= 1
        for piece in push.pieces:
            coverage._handed[piece.layer] = piece.start
        self._note_pushable(push.transfer)


class CommitsOnCounts(Producer):
    """A block counts when its push returned 0; here when its push returned."""

    def push_done(self, push: Push, ok: bool, now: float) -> None:
        """Take every push for a good one."""
        super().push_done(push, True, now)


class CallsDirtyClean(Producer):
    """A failed push may go on writing (E1); here it fails cleanly."""

    def _fail(self, transfer: Outgoing, reason: str, *, dirty: bool, now: float) -> None:
        super()._fail(transfer, reason, dirty=False, now=now)


class AnswersWhilePushing(Producer):
    """An epoch has failed cleanly only when no push of it is under way; here as soon as it is given up."""

    def _settle(self, transfer: Outgoing, now: float) -> None:
        if transfer.ending:
            self._fail(transfer, transfer.ending, dirty=False, now=now)
        else:
            super()._settle(transfer, now)


class CommitsTheVoid(Producer):
    """An epoch whose source blocks were taken away is void (I2); here the notice is ignored."""

    def void(self, request_id: str, reason: str, now: float) -> None:
        """Do nothing."""


class CancelsWhilePushing(Producer):
    """A cancelled epoch ends like any other, once no push of it is under way (I3); here at once."""

    def cancel(self, transfer_id: str, now: float) -> bool:
        """Fail it cleanly, whatever is under way."""
        if transfer := self.transfers.get(transfer_id):
            self._fail(transfer, "cancelled", dirty=False, now=now)
        return False


class ReleasesEarly(Producer):
    """A finished prompt keeps its blocks until its pushes have ended (I2); here they are freed with the request."""

    def hold(self, request_id: str, now: float) -> None:
        """Free the blocks."""
        self.released.append(request_id)


class PushesUnwritten(Producer):
    """A block is pushed when the device has written it (I1); here when its prompt has started."""

    def _pair(self, transfer: Outgoing, now: float) -> None:
        if transfer.prompt is not None:
            transfer.ready[:] = [transfer.prompt.blocks] * len(transfer.ready)
        super()._pair(transfer, now)


class ForgetsWhoAsked(Producer):
    """A commit answers the process that drew the epoch; here whoever asks for an epoch of that number (trap 11)."""

    class _Tombstones(Tombstones):
        def answer(self, decode: int, transfer_id: str, epoch: int) -> Commit | Fail | None:
            """Answer by epoch alone."""
            known = self._outcomes.get(transfer_id)
            return super().answer(known[0] if known else decode, transfer_id, epoch)

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]  # passed through
        self.tombstones = self._Tombstones()


class KeepsOrphans(Producer):
    """A finished prompt that nobody asks for is let go (I5); here it is kept."""

    def tick(self, now: float) -> None:
        """Look only at silent peers."""
        for transfer in self.transfers.values():
            if transfer.held_since is not None:
                transfer.held_since = now
        super().tick(now)


class MournsForEver(Producer):
    """What a dead decode rank had reserved is let go (I5); here it is kept."""

    def _lose(self, decode: int, reason: str, now: float) -> None:
        pass


class KeepsNoTombstones(Producer):
    """What has ended stays ended, however late it is asked for (I3); here it may begin again."""

    class _Tombstones(Tombstones):
        def bury(self, decode: int, outcome: Commit | Fail) -> None:
            """Forget it."""

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]  # passed through
        self.tombstones = self._Tombstones()


class TakesTheLastReservation(Producer):
    """An epoch is pushed where it was reserved first (I4); here a later reservation takes its place."""

    def _reserve(self, decode: int, body: Reserve, now: float) -> None:
        transfer = self.transfers.get(body.transfer_id)
        if transfer is not None and transfer.reservation is not None:
            transfer.decode, transfer.reservation = decode, body
        else:
            super()._reserve(decode, body, now)


class KeepsUnwanted(Producer):
    """What D no longer lists is let go (I5); here it is kept."""

    def _end(self, transfer: Outgoing, reason: str, now: float) -> None:
        if reason != UNWANTED:
            super()._end(transfer, reason, now)


class ReleasesBeforeDigest(Producer):
    """The source blocks are held until their digests are there (I2); here until they have been pushed."""

    def _settle(self, transfer: Outgoing, now: float) -> None:
        super()._settle(transfer, now)
        if transfer in self.to_digest and transfer.held_since is not None:
            self.released.append(transfer.request_id)
            transfer.held_since = None


class CommitsUndigested(Producer):
    """A verified transfer is committed with its digests; here without."""

    def _settle(self, transfer: Outgoing, now: float) -> None:
        if not transfer.ending and transfer.coverage is not None and transfer.coverage.complete:
            self._commit(transfer, now)
        else:
            super()._settle(transfer, now)


class TakesAnyPrompt(Producer):
    """P and D must mean the same prompt (I7); here P does not look."""

    def _pair(self, transfer: Outgoing, now: float) -> None:
        if transfer.prompt is not None and transfer.reservation is not None:
            transfer.prompt = transfer.prompt._replace(prompt_hash=transfer.reservation.prompt_hash)
        super()._pair(transfer, now)


# --- D ---------------------------------------------------------------------------------------------------------------


class FreesWithoutFence(Consumer):
    """The blocks of a dirty epoch come back with the fence (I3); here at once."""

    def _taint(self, transfer: Incoming, now: float) -> None:
        self._close(transfer)


class FreesOnRevoke(Consumer):
    """Revoked blocks come back when P has answered (I3); here at once."""

    def _revoke(self, transfer: Incoming, now: float) -> None:
        if transfer.phase is Phase.RESERVED:
            self._send(transfer, Revoke(transfer_id=transfer.transfer_id, epoch=transfer.epoch))
            self._close(transfer)
        else:
            super()._revoke(transfer, now)


class TrustsALease(Consumer):
    """Time says nothing about writes (E2); here a revoke that stays unanswered for long frees the blocks."""

    def _check_transfer(self, transfer: Incoming, now: float) -> None:
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
    """Mail for another process is not acted on (trap 11); here every message is taken for ours."""

    def receive(self, peer: str, message: Message, now: float) -> None:
        """Forge the envelope."""
        session = self.sessions.get(peer)
        sender = session.peer if session and session.peer else message.sender
        super().receive(peer, message._replace(sender=sender, receiver=self.incarnation), now)


class ReservesBeforeZeroing(Consumer):
    """P hears of blocks when they have been zeroed (I6); here when they have been allocated."""

    def prepare(self, request_id: str, epoch: int, wish: Wish, now: float) -> None:
        """Do not wait for the device."""
        super().prepare(request_id, epoch, wish, now)
        self.zeroed([request_id], now)


class TakesAnyCommit(Consumer):
    """A commit must be for this prompt (I7); here every one will do."""

    def _committed(self, transfer: Incoming, body: Commit) -> None:
        self._resolve(transfer, "", commit=body)
        self._close(transfer)


class ResumesUnverified(Consumer):
    """A commit with digests is used once they have been compared; here at once."""

    def _committed(self, transfer: Incoming, body: Commit) -> None:
        super()._committed(transfer, replace_digests(body))


class WaitsForEver(Consumer):
    """A transfer that takes too long is given up (I5); here it is waited for."""

    def _check_transfer(self, transfer: Incoming, now: float) -> None:
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

    def prepare(self, request_id: str, epoch: int, wish: Wish, now: float) -> None:
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
        """Close them all."""
        for transfer in self.transfers.values():
            if transfer.engine:
                transfer.engine = engine
        super().fenced(engine)


class FencesOnlyTheDirty(Consumer):
    """With an engine, its healthy epochs end as well (I5); here they are left to wait."""

    def fenced(self, engine: str) -> None:
        """Close the dirty ones."""
        for transfer in self.transfers.values():
            if transfer.engine == engine and transfer.phase is not Phase.DIRTY:
                transfer.engine = f"{engine}, gone"
        super().fenced(engine)


def replace_digests(body: Commit) -> Commit:
    """The same commit without digests."""
    return msgspec.structs.replace(body, digests=b"")


class Mutant(NamedTuple):
    """A pair of machines, the scope in which it is caught, and the invariant that it breaks."""

    name: str
    breaks: str
    scope: Scope
    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer


CALM = Scope(faults=0)
VERIFIED = Scope(faults=0, verify=True)
SILENT = Scope(faults=1, losses=0, duplicates=0, crashes_p=0, crashes_d=0)
LATE = Scope(faults=2, losses=0, crashes_p=0, crashes_d=0)
TWO = Scope(transfers=2, crashes_p=0, crashes_d=0)
P_DIES = Scope(faults=1, losses=0, duplicates=0, silences=0, crashes_d=0)
D_DIES = Scope(faults=1, losses=0, duplicates=0, silences=0, crashes_p=0, asks_again=False)
D_ASKS_AGAIN = replace(D_DIES, asks_again=True)
MUTANTS = [
    Mutant("retry a dirty epoch", "I3", CALM, producer=RetriesDirty),
    Mutant("free without fence", "I3", CALM, consumer=FreesWithoutFence),
    Mutant("commit on counts only", "I4", CALM, producer=CommitsOnCounts),
    Mutant("call a dirty epoch clean", "I3", CALM, producer=CallsDirtyClean),
    Mutant("answer a revoke while pushing", "I3", CALM, producer=AnswersWhilePushing),
    Mutant("answer a cancel while pushing", "I3", CALM, producer=CancelsWhilePushing),
    Mutant("commit after a preemption", "I2", CALM, producer=CommitsTheVoid),
    Mutant("release the source early", "I2", CALM, producer=ReleasesEarly),
    Mutant("push before it is written", "I1", CALM, producer=PushesUnwritten),
    Mutant("answer another process's epoch", "I4", D_ASKS_AGAIN, producer=ForgetsWhoAsked),
    Mutant("keep prompts that nobody asks for", "I5", CALM, producer=KeepsOrphans),
    Mutant("keep what the dead had reserved", "I5", D_DIES, producer=MournsForEver),
    Mutant("keep no tombstones", "I3", LATE, producer=KeepsNoTombstones),
    Mutant("let another reservation take over", "I4", D_ASKS_AGAIN, producer=TakesTheLastReservation),
    Mutant("keep what D no longer lists", "I5", SILENT, producer=KeepsUnwanted),
    Mutant("release before the digest", "digest", VERIFIED, producer=ReleasesBeforeDigest),
    Mutant("commit without digests", "digest", VERIFIED, producer=CommitsUndigested),
    Mutant("free on a revoke without an answer", "I3", CALM, consumer=FreesOnRevoke),
    Mutant("trust a lease", "I3", CALM, consumer=TrustsALease),
    Mutant("let a restarted P inherit epochs", "I3", P_DIES, consumer=IgnoresRestart),
    Mutant("ignore incarnations", "I4", D_ASKS_AGAIN, consumer=IgnoresIncarnations),
    Mutant("reserve before zeroing", "I4", CALM, consumer=ReservesBeforeZeroing),
    Mutant("resume unverified", "digest", VERIFIED, consumer=ResumesUnverified),
    Mutant("wait for ever", "I5", CALM, consumer=WaitsForEver),
    Mutant("never fence", "I5", CALM, consumer=NeverFences),
    Mutant("free before the fence is done", "I3", CALM, consumer=BelievesInFences),
    Mutant("free everything with a fence", "I3", TWO, consumer=FencesEverything),
    Mutant("leave healthy epochs to a fenced engine", "I5", TWO, consumer=FencesOnlyTheDirty),
    Mutant("keep a dead peer", "I5", P_DIES, consumer=KeepsTheDead),
    Mutant("ignore a loss that crosses an allocation", "I5", CALM, consumer=IgnoresACrossing),
    Mutant("resume on another prompt", "I2", replace(CALM, other_prompt=True), TakesAnyPrompt, TakesAnyCommit),
    Mutant("reuse an engine's name", "I3", replace(D_DIES, engine_names_return=True)),
]
