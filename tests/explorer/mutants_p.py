"""`Producer` with one guard taken out. Each class says which guard it lacks."""

from baton.kv_connector.handoff.outgoing import ProducerTransfer, Prompt, Push
from baton.kv_connector.handoff.producer import UNWANTED, Producer
from baton.kv_connector.handoff.tombstones import Tombstones
from baton.kv_connector.protocol.messages import Commit, Fail, Reserve, SampledToken


class CommitsBeforeTheToken(Producer):
    """COMMIT waits for the first token (I8); here it goes out without."""

    def start(self, transfer_id: str, request_id: str, prompt: Prompt, now: float) -> None:
        """Ask for no token."""
        super().start(transfer_id, request_id, prompt._replace(samples=False), now)


class ForgetsTheToken(Producer):
    """The token lets a complete transfer commit (I5); here that is seen to by nothing."""

    def first_token(self, request_id: str, token: SampledToken | None, now: float) -> None:  # the shape
        """Remember it, and leave it at that."""
        transfer = self._by_request(request_id)
        if transfer and transfer.prompt:
            transfer.first, transfer.prompt = token, transfer.prompt._replace(samples=False)

    def hold(self, request_id: str, now: float) -> None:
        """Keep the blocks."""
        if transfer := self._by_request(request_id):
            transfer.held_since = now


class GivesTheTokenToAll(Producer):
    """A token is its own prompt's (I8); here every prompt that waits for one gets it."""

    def first_token(self, request_id: str, token: SampledToken | None, now: float) -> None:  # the shape
        """Take no notice of whose it is."""
        for other in list(self._ids):
            super().first_token(other, token, now)


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

    def _fail(self, transfer: ProducerTransfer, reason: str, *, dirty: bool, now: float) -> None:
        super()._fail(transfer, reason, dirty=False, now=now)


class AnswersWhilePushing(Producer):
    """An epoch has failed cleanly only when no push of it is under way; here as soon as it is given up."""

    def _settle(self, transfer: ProducerTransfer, now: float) -> None:
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

    def _pair(self, transfer: ProducerTransfer, now: float) -> None:
        if transfer.prompt is not None:
            transfer.ready[:] = [transfer.prompt.blocks] * len(transfer.ready)
        super()._pair(transfer, now)


class ForgetsWhoAsked(Producer):
    """A commit answers the process that drew the epoch; here whoever asks for an epoch of that number."""

    class _Tombstones(Tombstones):
        def answer(self, decode: int, transfer_id: str, epoch: int) -> Commit | Fail | None:
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

    def _end(self, transfer: ProducerTransfer, reason: str, now: float) -> None:
        if reason != UNWANTED:
            super()._end(transfer, reason, now)


class ReleasesBeforeDigest(Producer):
    """The source blocks are held until their digests are there (I2); here until they have been pushed."""

    def _settle(self, transfer: ProducerTransfer, now: float) -> None:
        super()._settle(transfer, now)
        if transfer in self.to_digest and transfer.held_since is not None:
            self.released.append(transfer.request_id)
            transfer.held_since = None


class CommitsUndigested(Producer):
    """A verified transfer is committed with its digests; here without."""

    def _settle(self, transfer: ProducerTransfer, now: float) -> None:
        if not transfer.ending and transfer.coverage is not None and transfer.coverage.complete:
            self._commit(transfer, now)
        else:
            super()._settle(transfer, now)


class TakesAnyPrompt(Producer):
    """P and D must mean the same prompt (I7); here P does not look."""

    def _pair(self, transfer: ProducerTransfer, now: float) -> None:
        if transfer.prompt is not None and transfer.reservation is not None:
            transfer.prompt = transfer.prompt._replace(prompt_hash=transfer.reservation.prompt_hash)
        super()._pair(transfer, now)
