"""The machines with one guard taken out. The explorer must find each: that shows that it would see a bug there.

A guard is taken out of the machine's text, so that none is looked for that the machine has no more. What has to remember
something is a class of its own, in `mutants_repair.py`.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from baton.kv_connector.handoff.consumer import Consumer
from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.gather import Gather
from baton.kv_connector.handoff.producer import Producer
from baton.kv_connector.handoff.tombstones import Tombstones
from tests.explorer import mutants_repair
from tests.explorer.exhaust import Result, exhaust
from tests.explorer.scene import Machines, Scene
from tests.explorer.sides import Sides
from tests.mutants.mutations import Mutation


class Mutant(NamedTuple):
    """Machines, the scene in which they are caught, and what they break: an invariant, or the repair of a loss."""

    name: str
    breaks: str
    scene: Scene
    machines: Machines = Machines()


def edited(kind: type, *texts: str, **names: Any) -> Any:
    """Make a class out of another one's text: `texts` are pairs, of what stands there once and what takes its place.

    `names`: what it finds under these names of its module.
    """
    module = sys.modules[kind.__module__]
    assert module.__file__
    text = Path(module.__file__).read_text()
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        text = Mutation(module.__file__, old, new, ()).applied_to(text)
    space: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(text, module.__file__, "exec"), space)  # noqa: S102  # our own text
    made = space[kind.__name__]
    space |= {name: value for name, value in vars(module).items() if name != kind.__name__} | names
    made.__module__, made.__qualname__ = __name__, f"{kind.__name__}{len(globals())}"
    return globals().setdefault(made.__qualname__, made)  # where `pickle` finds it


def p(*texts: str, **names: Any) -> Machines:
    return Machines(producer=edited(Producer, *texts, **names))


def d(*texts: str) -> Machines:
    return Machines(consumer=edited(Consumer, *texts))


def gather(*texts: str) -> Machines:
    return Machines(gather=edited(Gather, *texts))


def fan_out(*texts: str) -> Machines:
    return Machines(fan_out=edited(FanOut, *texts))


class GivesTheTokenToAll(Producer):
    def token_sampled(self, request_id: str, token: Any, now: float) -> None:
        for other in list(self._ids):
            super().token_sampled(other, token, now)


NARROW = frozenset({"cancel", "abandon", "void", "zero", "orphan", "overdue", "unanswered", "silence", "beat"})
CALM = Scene(crashes_p=0, crashes_d=0)
SAMPLED = replace(CALM, samples=True)
VERIFIED = replace(CALM, verify=True)
LATE = replace(CALM, left_out=NARROW - {"cancel"})
TWO = replace(CALM, transfers=2, left_out=NARROW | {"hold"})
P_DIES = Scene(crashes_d=0)
D_DIES = Scene(crashes_p=0, asks_again=False)
D_ASKS_AGAIN = Scene(crashes_p=0, left_out=NARROW)
IN_TOUCH = replace(CALM, cut_off=False)
TWO_P = replace(IN_TOUCH, prefill_ranks=2)
TWO_D = replace(IN_TOUCH, decode_ranks=2)
OTHERS_PROMPT = Machines(
    edited(Producer, "wish.prompt_hash != prompt.prompt_hash or wish.tokens", "wish.tokens"),
    edited(Consumer, "if (body.tokens, body.prompt_hash) != (wish.tokens, wish.prompt_hash):", "if False:"),
)
FAILED = 'self._fail(transfer, "a push failed", dirty=True, now=now)'
MUTANTS = [
    Mutant("commit before the first token", "I8", SAMPLED, p("if transfer.prompt.samples:\n", "if False:\n")),
    Mutant(
        "wait for a token that will not come",
        "repair",
        SAMPLED,
        p("  # nothing to wait for\n            self._settle(transfer, now)", ""),
    ),
    Mutant(
        "give the token to all prompts",
        "I8",
        replace(TWO, samples=True),
        Machines(producer=GivesTheTokenToAll),
    ),
    Mutant(
        "resume with the last rank's commit",
        "I8",
        replace(TWO_P, samples=True),
        gather("self._incomplete(gathering), with_token", "self._incomplete(gathering), one.commit"),
    ),
    Mutant(
        "retry a dirty epoch",
        "I3",
        CALM,
        p(
            FAILED,
            "for piece in push.pieces:\n                transfer.coverage._handed[piece.layer] = piece.start\n"
            "            self._note_pushable(transfer)",
        ),
    ),
    Mutant(
        "free without fence",
        "I3",
        CALM,
        d(
            "        transfer.phase = Phase.DIRTY\n        self.domains.retire(transfer.engine, now)",
            "        self._close(transfer)",
        ),
    ),
    Mutant("commit on counts only", "I4", CALM, p("if not ok:\n", "if False:\n")),
    Mutant("call a dirty epoch clean", "I3", CALM, p(FAILED, FAILED.replace("True", "False"))),
    Mutant("answer a revoke while pushing", "I3", CALM, p("if transfer.in_flight == 0:\n", "if True:\n")),
    Mutant(
        "answer a cancel while pushing",
        "I3",
        CALM,
        p("self._end(transfer, CANCELLED, now)", "self._fail(transfer, CANCELLED, dirty=False, now=now)"),
    ),
    Mutant(
        "commit after a preemption",
        "I2",
        CALM,
        p("self._end(transfer, reason, now)\n\n    def give_up(", "pass\n\n    def give_up("),
    ),
    Mutant(
        "release the source early",
        "I2",
        CALM,
        p(
            "transfer.held_since = now\n            self.token_sampled",
            "self.released.append(request_id)\n            self.token_sampled",
        ),
    ),
    Mutant(
        "push before it is written", "I1", CALM, p("ready=transfer.ready,", "ready=[prompt.blocks] * self._layers,")
    ),
    Mutant(
        "answer another process's epoch",
        "I4",
        D_ASKS_AGAIN,
        p(Tombstones=edited(Tombstones, "(owner, outcome.epoch) == (decode, epoch)", "outcome.epoch == epoch")),
    ),
    Mutant(
        "keep prompts that nobody asks for", "I5", CALM, p("now - held > self._settings.orphan_timeout_s:", "False:")
    ),
    Mutant(
        "keep what the dead had reserved",
        "I5",
        D_DIES,
        p('self._lose(incarnation, "the decode node fell silent", now)', "pass"),
    ),
    Mutant("keep no tombstones", "I3", LATE, p("self.tombstones = Tombstones()", "self.tombstones = Tombstones(0)")),
    Mutant(
        "let another reservation take over",
        "I3",
        D_ASKS_AGAIN,
        p(
            "if (transfer.decode, transfer.epoch) != (decode, body.epoch):\n",
            "transfer.decode, transfer.reservation = decode, body\n            if False:\n",
        ),
    ),
    Mutant("keep what D no longer lists", "I5", CALM, p("self._end(transfer, UNWANTED, now)", "pass")),
    Mutant(
        "release before the digest",
        "digest",
        VERIFIED,
        p(
            "self.to_digest.append(transfer)",
            "self.to_digest.append(transfer)\n"
            "                self.released += [transfer.request_id] * (transfer.held_since is not None)\n"
            "                transfer.held_since = None",
        ),
    ),
    Mutant(
        "commit without digests",
        "digest",
        VERIFIED,
        p("if transfer.digests or not self._is_verified(transfer):", "if True:"),
    ),
    Mutant(
        "free on a revoke without an answer",
        "I3",
        CALM,
        d("transfer.phase, transfer.revoked_at = Phase.REVOKING, now\n", "self._close(transfer)\n"),
    ),
    Mutant(
        "trust a lease",
        "I3",
        CALM,
        d(
            "self._taint(transfer, now)\n        elif transfer.phase is",
            "self._close(transfer)\n        elif transfer.phase is",
        ),
    ),
    Mutant("let a restarted P inherit epochs", "I3", P_DIES, d("        if restarted:\n", "        if False:\n")),
    Mutant(
        "ignore incarnations",
        "I3",
        D_ASKS_AGAIN,
        d(
            "        restarted = session.is_restart(message)",
            "        message = message._replace(sender=session.peer or message.sender, receiver=self.incarnation)\n"
            "        restarted = session.is_restart(message)",
        ),
    ),
    Mutant(
        "reserve before zeroing",
        "I4",
        CALM,
        d(
            "= Phase.PREPARED, epoch, wish, now\n",
            "= Phase.PREPARED, epoch, wish, now\n        self.zeroed([request_id], now)\n",
        ),
    ),
    Mutant("resume unverified", "digest", VERIFIED, d("elif body.digests and not transfer.resolved:", "elif False:")),
    Mutant("wait for ever", "I5", CALM, d("self._check_transfer(transfer, now)", "pass")),
    Mutant("never fence", "I5", CALM, d("self._check_fences(now)\n", "pass\n")),
    Mutant(
        "free before the fence is done",
        "I3",
        CALM,
        d(
            "self.fences.append(engine)\n",
            "self.fences.append(engine)\n        for engine in self.fences:\n            self.fenced(engine)\n",
        ),
    ),
    Mutant("free everything with a fence", "I3", TWO, d("if transfer.engine == engine:", "if transfer.engine:")),
    Mutant("keep a dead peer", "I5", P_DIES, d("self._check_peer(peer, session, now)\n", "pass\n")),
    Mutant(
        "ignore a loss that crosses an allocation",
        "I5",
        CALM,
        d(
            'self.resolved.append(Resolved(request_id, "", False, True, "the transfer had already failed", None))\n'
            "            self.closed.append(request_id)\n",
            "",
        ),
    ),
    Mutant("resume on another prompt", "I2", replace(CALM, other_prompt=True), OTHERS_PROMPT),
    Mutant("reuse an engine's name", "I3", replace(D_DIES, engine_names_return=True)),
    Mutant("reuse a block before it is void", "I2", replace(CALM, zeroes_first=True)),
    Mutant(
        "resume when the first rank has committed",
        "I4",
        TWO_P,
        gather(
            "if len(gathering.commits) < len(gathering.flows):",
            "if False:",
            "self._incomplete(gathering), with_token",
            '"", with_token',
        ),
    ),
    Mutant(
        "resume though a rank had no part",
        "I4",
        replace(TWO_P, short=True),
        gather("if pushed != gathering.shares:", "if False:"),
    ),
    Mutant(
        "give back when the first rank has failed",
        "I3",
        TWO_P,
        gather(
            "commit if ok else None)\n        )\n",
            "commit if ok else None)\n        )\n        self.closed += [request_id] * gathering.prepared\n        gathering.prepared = False\n",
        ),
    ),
    Mutant("resume though a rank means another prompt", "I2", replace(TWO_P, other_prompt=True), OTHERS_PROMPT),
    Mutant("release when the first rank lets go", "I2", TWO_D, fan_out("= len(parts)\n", "= min(len(parts), 1)\n")),
    Mutant(
        "void for the first rank alone",
        "I2",
        TWO_D,
        fan_out(
            "self._parts(request_id):\n            self._producer.void(",
            "self._parts(request_id)[:1]:\n            self._producer.void(",
        ),
    ),
    Mutant("say HELLO once", "repair", IN_TOUCH, Machines(consumer=mutants_repair.IntroducesItselfOnce)),
    Mutant(
        "say RESERVE once",
        "repair",
        IN_TOUCH,
        d("not in known:\n                self._send_reserve(transfer)", "not in known:\n                pass"),
    ),
    Mutant(
        "say RESERVE with the second beat",
        "repair",
        IN_TOUCH,
        Machines(consumer=mutants_repair.ReservesEveryOtherTime),
    ),
    Mutant(
        "say REVOKE once",
        "I5",
        IN_TOUCH,
        d(
            "    if transfer.phase is Phase.REVOKING:\n                self._send(",
            "    if False:\n                self._send(",
        ),
    ),
    Mutant(
        "say once that nothing is needed",
        "repair",
        IN_TOUCH,
        d(
            "if len(declined) < MAX_DECLINED:",
            "if session.state is not SessionState.OPEN:",
            "self.hellos[peer] = hello\n        self._send_beat(peer)\n",
            "self.hellos[peer] = hello\n        self._send_beat(peer)\n        self._declined.pop(peer, None)\n",
        ),
    ),
    Mutant("beat every five seconds", "repair", IN_TOUCH, Machines(consumer=mutants_repair.BeatsSlowly)),
    Mutant("say STARTED once", "repair", IN_TOUCH, Machines(producer=mutants_repair.StartsOnce)),
    Mutant("say COMMIT once", "repair", IN_TOUCH, Machines(producer=mutants_repair.CommitsOnce)),
    Mutant("say FAIL(clean) once", "repair", IN_TOUCH, Machines(producer=mutants_repair.FailsOnce)),
    Mutant("say FAIL(dirty) once", "repair", IN_TOUCH, Machines(producer=mutants_repair.FailsDirtyOnce)),
    Mutant("answer no beat", "repair", IN_TOUCH, p("self._send(decode, Beat(open=mine))", "pass")),
    Mutant(
        "introduce nobody",
        "repair",
        CALM,
        p(
            "self.outbox.append((route, Message(self.incarnation, message.sender, next(self._sequence), Introduce())))",
            "pass",
        ),
    ),
]


def find(mutant: Mutant) -> Result:
    return exhaust(Sides(mutant.scene, mutant.machines))
