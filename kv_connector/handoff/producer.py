"""The prefill rank's side of every transfer.

A transfer is known once its prompt has started here or a decode rank has asked for it; blocks may be pushed when both
are true. It ends exactly once: COMMIT, or FAIL once no push of it is under way, or FAIL(dirty) as soon as one failed.

    start ─┐
           ├─► pushing ──► every block acknowledged ─► first token, if asked for ─► digest, if verified ─► COMMIT
    Reserve┘      └─ void, Revoke, peer lost, mismatch ─► draining ─► FAIL(clean)
                  └─ a push failed ──────────────────────────────► FAIL(dirty)

Outputs are collected: `outbox` (messages), `released` (requests whose source blocks may be freed), `to_digest`
(complete transfers whose digests are wanted), `complaints` (committed transfers that arrived wrong).

Longer than other files: the state machine is one table of events, and its invariants hold between all of them.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import count

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.handoff.layer_times import LayerTimes
from baton.kv_connector.handoff.outgoing import MismatchReport, ProducerTransfer, Prompt, Push
from baton.kv_connector.handoff.peer_quotas import Budget, PeerQuotas
from baton.kv_connector.handoff.pushing import Coverage, GroupPair, TransferLayout
from baton.kv_connector.handoff.session import Session, SessionState
from baton.kv_connector.handoff.tombstones import Tombstones
from baton.kv_connector.layout.windows import first_read_block
from baton.kv_connector.protocol.messages import (
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
    SampledToken,
    Started,
)
from baton.kv_connector.telemetry.refusals import Refused
from baton.kv_connector.telemetry.timings import counted_from

REVOKED, UNWANTED, CANCELLED = "revoked", "no longer wanted", "cancelled by the proxy"
DECISIONS = {REVOKED: "revoked", UNWANTED: "revoked", CANCELLED: "cancelled"}  # ends that are no failures

Route = object  # how the caller reaches a peer; opaque here


class Producer:
    """All transfers of one prefill rank."""

    def __init__(
        self,
        *,
        incarnation: int,
        layers: int,
        block_tokens: int,
        settings: TransferConfig,
        hello: Callable[[], Hello],
        check_compatible: Callable[[Hello], str],
        terms: Callable[[Hello], TransferLayout],
        verify: Callable[[str], bool],
        refused: Callable[[Refused], None],
        times_layers: bool = False,
    ) -> None:
        """Make the machine; it knows no peer yet.

        Args:
            incarnation: 63 random bits naming this process.
            layers: how many layers a block is pushed for.
            block_tokens: tokens of a scheduler block.
            settings: Time-outs, which affect liveness, never safety.
            hello: Makes our introduction.
            check_compatible: Returns why a peer's introduction cannot be accepted, or "".
            terms: What we have in common with a peer that was accepted.
            verify: Whether the commit of a transfer (by id) shall carry digests of its source blocks.
            refused: Told of each message that is not acted on, or not as its sender wishes.
            times_layers: Whether transfers remember when each layer was written and pushed.
        """
        self.incarnation = incarnation
        self.sessions: dict[int, Session] = {}
        self.transfers: dict[str, ProducerTransfer] = {}
        self.tombstones = Tombstones()
        self.outbox: list[tuple[Route, Message]] = []
        self.released: list[str] = []
        self.ended: list[tuple[ProducerTransfer, Commit | Fail]] = []
        self.to_digest: list[ProducerTransfer] = []
        self.complaints: list[MismatchReport] = []
        self._sequence = count(1)
        self._routes: dict[int, Route] = {}
        self._hellos: dict[int, Hello] = {}
        self._terms_of: dict[int, TransferLayout] = {}  # of open sessions
        self._layers = layers
        self._block_tokens = block_tokens
        self._terms = terms
        self._settings = settings
        self._hello = hello
        self._check_compatible = check_compatible
        self._verify = verify
        self._count = refused
        self._times_layers = times_layers
        self._quotas = PeerQuotas()
        self._ids: dict[str, str] = {}  # request id → transfer id, while live
        self._pushable: dict[str, ProducerTransfer] = {}  # in the order in which they got something to push

    # --- what the scheduler and the model thread say -------------------------------------------------------------

    def start(self, transfer_id: str, request_id: str, prompt: Prompt, now: float) -> None:
        """The prompt is scheduled for the first time. A transfer that has already ended stays ended."""
        if transfer_id in self.tombstones:
            return
        transfer = self._find_or_create(transfer_id, now)
        if transfer.prompt is not None:
            return  # the same id twice: the first request keeps it
        transfer.request_id, transfer.prompt = request_id, prompt
        transfer.marks["scheduled"] = now
        self._ids[request_id] = transfer_id
        if transfer.decode:
            self._send(transfer.decode, Started(transfer_id=transfer_id, tokens=prompt.tokens))
        self._begin_coverage(transfer, now)

    def add_source_blocks(self, request_id: str, *blocks: Sequence[int]) -> None:
        """The scheduler gave the prompt more blocks: ids by KV cache group, appended in prompt order."""
        if transfer := self._by_request(request_id):
            transfer.source_blocks += ([] for _ in blocks[len(transfer.source_blocks) :])
            for table, more in zip(transfer.source_blocks, blocks, strict=False):
                table.extend(more)

    def ready(self, request_id: str, layer: int, blocks: int, now: float) -> None:
        """The device has finished writing the first `blocks` blocks of the prompt in `layer` (I1)."""
        transfer = self._by_request(request_id)
        if transfer is None:
            return
        transfer.ready[layer] = max(transfer.ready[layer], blocks)
        transfer.marks.setdefault("first_layer", now)
        transfer.marks["last_layer"] = now
        if transfer.layer_times is not None:
            transfer.layer_times.wrote(layer, now)
        self._note_pushable(transfer)

    def token_sampled(self, request_id: str, token: SampledToken | None, now: float) -> None:
        """The answer's first token has been sampled; None: D has to sample it.

        Only the first call for a request counts: later ones are of later steps.
        """
        transfer = self._by_request(request_id)
        if transfer is not None and transfer.prompt is not None and transfer.prompt.samples and transfer.first is None:
            transfer.first = token
            transfer.prompt = transfer.prompt._replace(samples=False)  # nothing to wait for
            self._settle(transfer, now)

    def void(self, request_id: str, reason: str, now: float) -> None:
        """The source blocks are no longer ours (abort, preemption): this epoch must not be committed (I2)."""
        if transfer := self._by_request(request_id):
            self._end(transfer, reason, now)

    def give_up(self, request_id: str, reason: str, now: float) -> None:
        """The source blocks are wanted back (I5). With a reservation they come back soon in any case."""
        transfer = self._by_request(request_id)
        if transfer is not None and transfer.reservation is None:
            self._end(transfer, reason, now)

    def abandon(self, transfer_id: str, reason: str, now: float) -> None:
        """The prompt will never start here: the decode node that waits for it is told. One that has started is another request's."""
        if transfer_id in self.tombstones:
            return
        transfer = self._find_or_create(transfer_id, now)
        if transfer.prompt is None:
            self._end(transfer, reason, now)

    def cancel(self, transfer_id: str, now: float) -> bool:
        """The decode node or the proxy wants the transfer no more (any time, any number of times). Was it open here?"""
        if transfer := self.transfers.get(transfer_id):
            self._end(transfer, CANCELLED, now)
            return True
        if transfer_id not in self.tombstones:  # not begun: a late prompt or decode rank is answered at once
            self.tombstones.bury(0, _clean(transfer_id, 0, CANCELLED))
        return False

    def hold(self, request_id: str, now: float) -> None:
        """The request has finished and its blocks are kept until `released` names it."""
        if transfer := self._by_request(request_id):
            transfer.held_since = now
            self.token_sampled(request_id, None, now)  # it has ended: none will come
        else:
            self.released.append(request_id)

    # --- what the sender says ------------------------------------------------------------------------------------

    def next_push(self, max_units: Callable[[int], int], busy: Collection[int] = ()) -> Push | None:
        """Hand out the next push call, and count it as under way.

        `max_units`: how many units of layers a call to a decode rank may have. Transfers to the decode ranks in `busy`
        wait, so that one rank that does not take its bytes holds up no other.
        """
        for transfer_id, transfer in list(self._pushable.items()):
            if transfer.decode in busy:
                continue
            if self._transfer_may_push(transfer) and (
                pieces := transfer.coverage.take(max_units(transfer.decode))  # type: ignore[union-attr]  # _transfer_may_push saw it
            ):
                transfer.in_flight += 1
                return Push(transfer, transfer.epoch, pieces)
            del self._pushable[transfer_id]
        return None

    def push_begun(self, push: Push, now: float) -> None:
        """The sender sets about a push call. For timings alone."""
        push.transfer.marks.setdefault("first_push", now)
        if push.transfer.layer_times is not None:
            push.transfer.layer_times.begins(push.pieces, now)
        if push.transfer.pushing_since is None:
            push.transfer.pushing_since = now

    def push_done(self, push: Push, ok: bool, now: float) -> None:
        """A push call has ended. A failed one may go on writing (E1): its epoch is dirty and never retried."""
        transfer = push.transfer
        transfer.in_flight -= 1
        if transfer.layer_times is not None:
            transfer.layer_times.ends(push.pieces, now)
        if transfer.in_flight == 0 and transfer.pushing_since is not None:
            transfer.pushing_s += now - transfer.pushing_since
            transfer.pushing_since = None
        if self.transfers.get(transfer.transfer_id) is not transfer:
            return
        transfer.marks["last_push"] = now
        if not ok:
            self._fail(transfer, "a push failed", dirty=True, now=now)
            return
        assert transfer.coverage is not None  # pushes are handed out from it
        transfer.coverage.acknowledge(push.pieces)
        self._settle(transfer, now)

    def digested(self, transfer: ProducerTransfer, digests: bytes, now: float) -> None:
        """The digests of a complete transfer's source blocks; empty if they cannot be had.

        If the blocks were taken away while they were read (I2) the epoch is void, and the digests are of another's KV.
        """
        if self.transfers.get(transfer.transfer_id) is not transfer:
            return
        transfer.marks["digested"] = now
        if digests:
            transfer.digests = digests
            self._settle(transfer, now)
        else:
            self._end(transfer, "the digests could not be computed", now)

    # --- what the network and the clock say ----------------------------------------------------------------------

    def receive(self, route: Route, message: Message, now: float) -> None:
        session = self.sessions.get(message.sender)
        if isinstance(message.body, Hello) and message.receiver in (0, self.incarnation):
            self._greet(route, message, message.body, now)
        elif session is None or message.receiver != self.incarnation:
            self._count(Refused.STRANGER if session is None else Refused.FOREIGN_RECEIVER)
            self.outbox.append((route, Message(self.incarnation, message.sender, next(self._sequence), Introduce())))
        elif refusal := session.accept(message, now):
            self._count(refusal)
        elif session.state is not SessionState.OPEN:
            self._count(Refused.NOT_OPEN)
        else:
            self._routes[message.sender] = route
            self._act(message.sender, message.body, now)

    def tick(self, now: float) -> None:
        """Let go of peers that fell silent and of prompts that no decode rank asks for (I5)."""
        for incarnation, session in list(self.sessions.items()):
            if session.silent_for(now) > self._settings.peer_timeout_s:
                self._lose(incarnation, "the decode node fell silent", now)
        for transfer in list(self.transfers.values()):
            held = transfer.held_since
            if held is not None and not transfer.reservation and now - held > self._settings.orphan_timeout_s:
                self._end(transfer, "no decode node asked for this prompt", now)

    def hello_of(self, decode: int) -> Hello:
        return self._hellos[decode]

    # --- inside --------------------------------------------------------------------------------------------------

    def _greet(self, route: Route, message: Message, hello: Hello, now: float) -> None:
        session = self.sessions.get(message.sender) or Session(self.incarnation, self._sequence, now)
        crowded = message.sender not in self.sessions and not self._quotas.may_join(len(self.sessions))
        if refusal := Refused.TOO_MANY_PEERS if crowded else session.accept(message, now):
            self._count(refusal)
            return
        self.sessions[message.sender], self._routes[message.sender] = session, route
        session.reason = self._check_compatible(hello)
        if session.reason:
            session.state = SessionState.REFUSED
            self._count(Refused.INTRODUCTION)
            self._send(message.sender, Refuse(reason=session.reason))
        else:
            session.state = SessionState.OPEN
            self._hellos[message.sender], self._terms_of[message.sender] = hello, self._terms(hello)
            self._send(message.sender, self._hello())

    def _act(self, decode: int, body: Body, now: float) -> None:
        match body:
            case Reserve():
                self._reserve(decode, body, now)
            case Revoke():
                self._revoke(decode, body, now)
            case Beat():
                self._beat(decode, body, now)
            case _:
                self._count(Refused.UNEXPECTED)  # a newer peer's message that we do not need

    def _reserve(self, decode: int, body: Reserve, now: float) -> None:
        if outcome := self.tombstones.answer(decode, body.transfer_id, body.epoch):
            self._send(decode, outcome)
            return
        transfer = self.transfers.get(body.transfer_id)
        if transfer is not None and transfer.reservation is not None:
            if (transfer.decode, transfer.epoch) != (decode, body.epoch):
                self._send(decode, _clean(body.transfer_id, body.epoch, "another epoch is reserved"))
            return
        refusal = self._objection(decode, body.transfer_id)
        if refusal := refusal or self._quotas.objection_to(decode, body, self._hellos[decode]):
            self._count(refusal)
            self._send(decode, _clean(body.transfer_id, body.epoch, f"the reservation was refused: {refusal}"))
            return
        transfer = self._own(decode, body.transfer_id, now)
        transfer.reservation = body
        self._quotas.reserve(decode, body)
        transfer.marks["reserved"] = now
        self._begin_coverage(transfer, now)

    def _revoke(self, decode: int, body: Revoke, now: float) -> None:
        if body.mismatch:
            self._hear(decode, body)
            return
        transfer = self.transfers.get(body.transfer_id)
        if transfer is None:
            outcome = self.tombstones.answer(decode, body.transfer_id, body.epoch)
            if outcome is None:  # revoked before it arrived: remember, so that a late prompt does not hold blocks
                outcome = _clean(body.transfer_id, body.epoch, REVOKED)
                self.tombstones.bury(decode, outcome)
            self._send(decode, outcome)
        elif transfer.decode not in (0, decode):
            self._count(Refused.NOT_THEIRS)
            self._send(decode, _clean(body.transfer_id, body.epoch, "another decode node has this transfer"))
        elif transfer.epoch and transfer.epoch != body.epoch:
            self._send(decode, _clean(body.transfer_id, body.epoch, "another epoch is reserved"))
        else:
            self._own(decode, body.transfer_id, now)
            if body.epoch != transfer.epoch:  # its Reserve was lost: say at once that nothing was written
                self._send(decode, _clean(body.transfer_id, body.epoch, REVOKED))
            self._end(transfer, REVOKED, now)

    def _hear(self, decode: int, body: Revoke) -> None:
        """A commit arrived wrong. The rank that it was for is heard, once: then the transfer counts as failed."""
        committed = self.tombstones.answer(decode, body.transfer_id, body.epoch)
        if isinstance(committed, Commit) and committed.digests:
            self.tombstones.bury(decode, _clean(body.transfer_id, body.epoch, "it arrived otherwise than it was sent"))
            self.complaints.append(MismatchReport(body.transfer_id, decode, body.mismatch))
        else:
            self._count(Refused.UNEXPECTED)

    def _beat(self, decode: int, body: Beat, now: float) -> None:
        """Answer for every epoch that D counts as open; end those of ours that it no longer does.

        What one beat makes us do is bounded: the rest has to wait for the next. A prompt's blocks never wait.
        """
        wanted, budget = set(), Budget()
        for transfer_id, epoch in body.open:
            wanted.add(transfer_id)
            if transfer_id not in self.transfers and not budget.allows():
                continue
            if outcome := self.tombstones.answer(decode, transfer_id, epoch):
                self._send(decode, outcome)
            elif epoch == 0:
                self._watched(decode, transfer_id, now)
        for transfer in [t for t in self.transfers.values() if t.decode == decode and t.transfer_id not in wanted]:
            if transfer.prompt is not None or budget.allows():
                self._end(transfer, UNWANTED, now)
        mine = [OpenEpoch(t.transfer_id, t.epoch) for t in self.transfers.values() if t.decode == decode]
        self._send(decode, Beat(open=mine))

    def _watched(self, decode: int, transfer_id: str, now: float) -> None:
        if refusal := self._objection(decode, transfer_id):
            self._count(refusal)
            return
        transfer = self._own(decode, transfer_id, now)
        if transfer.held_since is not None and not (transfer.prompt and transfer.prompt.is_answer):
            transfer.held_since = now  # a decode rank that says it will ask keeps the prompt alive
        if transfer.prompt is not None:
            self._send(decode, Started(transfer_id=transfer_id, tokens=transfer.prompt.tokens))

    def _objection(self, decode: int, transfer_id: str) -> Refused | None:
        """Why a decode rank may not have this transfer."""
        transfer = self.transfers.get(transfer_id)
        owner = transfer.decode if transfer else None
        return self._quotas.objection(decode, owner, unstarted=len(self.transfers) - len(self._ids))

    def _own(self, decode: int, transfer_id: str, now: float) -> ProducerTransfer:
        """Make a decode rank the only one that a transfer is for."""
        transfer = self._find_or_create(transfer_id, now)
        if not transfer.decode:
            transfer.decode = decode
            self._quotas.own(decode)
        return transfer

    def _begin_coverage(self, transfer: ProducerTransfer, now: float) -> None:
        """Both sides are known: check that they mean the same prompt (I7), then pushing may begin."""
        prompt, wish = transfer.prompt, transfer.reservation
        if prompt is None or wish is None or transfer.ending:
            return
        terms = self._terms_of[transfer.decode]
        unit_tokens = self._block_tokens // terms.block_units
        their_tokens = unit_tokens * terms.their_block_units
        their_first, rest = divmod(wish.from_token, their_tokens)
        first, units = wish.from_token // unit_tokens, -(-prompt.tokens // unit_tokens)
        wanted = -(-prompt.tokens // their_tokens) - their_first
        if wish.prompt_hash != prompt.prompt_hash or wish.tokens != prompt.tokens:
            self._end(transfer, "the two nodes see different prompts", now)
        elif rest or first < 0 or wanted < 1 or (spans := self._spans(prompt, wish, terms, wanted)) is None:
            self._end(transfer, "the reservation does not fit the prompt", now)
        else:
            transfer.terms = terms
            transfer.coverage = Coverage(
                layers=terms.layers,
                first_unit=first,
                wanted=units - first,
                ready=transfer.ready,
                block_units=terms.block_units,
                spans={layer: range(span.start, min(span.stop, units - first)) for layer, span in spans.items()},
            )
            self._note_pushable(transfer)
            if transfer.coverage.complete:  # nothing to push, nothing to wait for
                self._settle(transfer, now)

    def _spans(self, prompt: Prompt, wish: Reserve, terms: TransferLayout, blocks: int) -> dict[int, range] | None:
        """Return which units each layer has to push, counted from the first wanted; `None` if that cannot be done.

        In each group D names so many `blocks`, 0 for those that it does not want: they come before and after the rest.
        It may want nothing that P has let go, which a window does (I2).
        """
        if not wish.blocks or any(len(group) != blocks for group in wish.blocks):
            return None
        spans: dict[GroupPair, range] = {}
        for group in {terms.group_of(layer) for layer in terms.layers}:
            if group.theirs >= len(wish.blocks):
                return None
            before = wish.from_token // self._block_tokens
            wanted = _wanted(wish.blocks[group.theirs], group.places, before)
            kept = first_read_block(prompt.tokens, group.window, self._block_tokens)
            if wanted is None or (wanted and before + wanted.start < kept):
                return None
            spans[group] = range(wanted.start * terms.their_block_units, wanted.stop * terms.their_block_units)
        return {layer: spans[terms.group_of(layer)] for layer in terms.layers}

    def _transfer_may_push(self, transfer: ProducerTransfer) -> bool:
        """A push may begin only for an epoch that is reserved, not ending, and of a session that is alive; `Coverage` says of which layers."""
        return transfer.coverage is not None and not transfer.ending and transfer.decode in self.sessions

    def _note_pushable(self, transfer: ProducerTransfer) -> None:
        if transfer.coverage is not None and transfer.coverage.pending:
            self._pushable.setdefault(transfer.transfer_id, transfer)

    def _end(self, transfer: ProducerTransfer, reason: str, now: float) -> None:
        """Begin no further push; fail once those under way have ended."""
        transfer.ending = transfer.ending or reason
        self._settle(transfer, now)

    def _settle(self, transfer: ProducerTransfer, now: float) -> None:
        if transfer.ending:
            if transfer.in_flight == 0:
                self._fail(transfer, transfer.ending, dirty=False, now=now)
        elif transfer.coverage is not None and transfer.coverage.complete:
            assert transfer.prompt is not None
            if transfer.prompt.samples:
                return
            if transfer.digests or not self._is_verified(transfer):
                self._commit(transfer, now)
            else:
                self.to_digest.append(transfer)

    def _is_verified(self, transfer: ProducerTransfer) -> bool:
        return bool(transfer.terms.layers) and transfer.terms.whole and self._verify(transfer.transfer_id)

    def _commit(self, transfer: ProducerTransfer, now: float) -> None:
        assert transfer.prompt is not None
        transfer.marks["commit"] = now
        prompt = transfer.prompt
        self._close(
            transfer,
            Commit(
                transfer_id=transfer.transfer_id,
                epoch=transfer.epoch,
                tokens=prompt.tokens,
                prompt_hash=prompt.prompt_hash,
                shards=prompt.shards,
                shares=transfer.terms.shares,
                cached_tokens=prompt.cached_tokens,
                timings_s=counted_from("scheduled", transfer.marks),
                pushing_s=round(transfer.pushing_s, 6),
                digests=transfer.digests,
                first=transfer.first,
            ),
        )

    def _fail(self, transfer: ProducerTransfer, reason: str, *, dirty: bool, now: float) -> None:
        transfer.marks["failed"] = now
        fail = Fail(transfer_id=transfer.transfer_id, epoch=transfer.epoch, dirty=dirty, reason=reason)
        self._close(transfer, fail)

    def _close(self, transfer: ProducerTransfer, outcome: Commit | Fail) -> None:
        del self.transfers[transfer.transfer_id]
        self._pushable.pop(transfer.transfer_id, None)
        self._ids.pop(transfer.request_id, None)
        if transfer.decode:
            self._quotas.give(transfer.decode, transfer.reservation)
        self.tombstones.bury(transfer.decode, outcome)
        self.ended.append((transfer, outcome))
        self._send(transfer.decode, outcome)
        if transfer.held_since is not None:
            self.released.append(transfer.request_id)

    def _lose(self, decode: int, reason: str, now: float) -> None:
        del self.sessions[decode], self._routes[decode]  # before ending: nothing can be sent
        self._hellos.pop(decode, None)
        self._terms_of.pop(decode, None)
        self._quotas.forget(decode)
        for transfer in list(self.transfers.values()):
            if transfer.decode == decode:
                self._end(transfer, reason, now)

    def _find_or_create(self, transfer_id: str, now: float) -> ProducerTransfer:
        transfer = self.transfers.get(transfer_id)
        if transfer is None:
            transfer = ProducerTransfer(transfer_id, now, self._layers, ready=[0] * self._layers)
            transfer.layer_times = LayerTimes() if self._times_layers else None
            self.transfers[transfer_id] = transfer
        return transfer

    def _by_request(self, request_id: str) -> ProducerTransfer | None:
        return self.transfers.get(self._ids.get(request_id, ""))

    def _send(self, decode: int, body: Body) -> None:
        if session := self.sessions.get(decode):
            self.outbox.append((self._routes[decode], session.stamp(body)))


def _wanted(blocks: Sequence[int], places: int, before: int) -> range | None:
    """Return the places from the first block that is not 0 to the last; `None` if others are between them, or one is misplaced.

    A block that stands for several `places` is at the last of them, and the prompt's last at its end. The first one in
    the list is the prompt's place `before`.
    """
    taken = [place for place, block in enumerate(blocks) if block]
    found = range(taken[0], taken[-1] + 1) if taken else range(0)
    ends = [place for place in found if (before + place + 1) % places == 0 or place == len(blocks) - 1]
    return found if ends == taken else None


def _clean(transfer_id: str, epoch: int, reason: str) -> Fail:
    return Fail(transfer_id=transfer_id, epoch=epoch, dirty=False, reason=reason)
