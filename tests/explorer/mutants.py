"""The machines with one guard taken out. The explorer must find each: that shows that it would see a bug there."""

from dataclasses import replace
from typing import NamedTuple

from tests.explorer.exhaust import exhaust
from tests.explorer.explore import Result, explore
from tests.explorer.mutants_d import (
    BelievesInFences,
    FencesEverything,
    FreesOnRevoke,
    FreesWithoutFence,
    IgnoresACrossing,
    IgnoresIncarnations,
    IgnoresRestart,
    KeepsTheDead,
    NeverFences,
    ReservesBeforeZeroing,
    ResumesUnverified,
    TakesAnyCommit,
    TrustsALease,
    WaitsForEver,
)
from tests.explorer.mutants_p import (
    AnswersWhilePushing,
    CallsDirtyClean,
    CancelsWhilePushing,
    CommitsBeforeTheToken,
    CommitsOnCounts,
    CommitsTheVoid,
    CommitsUndigested,
    ForgetsTheToken,
    ForgetsWhoAsked,
    GivesTheTokenToAll,
    KeepsNoTombstones,
    KeepsOrphans,
    KeepsUnwanted,
    MournsForEver,
    PushesUnwritten,
    ReleasesBeforeDigest,
    ReleasesEarly,
    RetriesDirty,
    TakesAnyPrompt,
    TakesTheLastReservation,
)
from tests.explorer.mutants_ranks import (
    CountsNoParts,
    GivesBackWithTheFirst,
    ReleasesWithTheFirst,
    ResumesOnTheFirst,
    TakesTheLastCommit,
    VoidsTheFirst,
)
from tests.explorer.mutants_repair import (
    AnswersNoBeat,
    AsksNobodyIn,
    BeatsSlowly,
    CommitsOnce,
    DeclinesOnce,
    FailsDirtyOnce,
    FailsOnce,
    IntroducesItselfOnce,
    ReservesEveryOtherTime,
    ReservesOnce,
    RevokesOnce,
    StartsOnce,
)
from tests.explorer.scope import Machines, Scene, Scope
from tests.explorer.sides import Sides
from tests.explorer.world import World


class Mutant(NamedTuple):
    """Machines, the scope or scene in which they are caught, and what they break: an invariant, or the repair of a loss."""

    name: str
    breaks: str
    scope: Scene
    machines: Machines = Machines()


NARROW = frozenset({"cancel", "abandon", "void", "zero", "orphan", "overdue", "unanswered", "silence", "beat"})
CALM = Scope(faults=0, crashes_p=0, crashes_d=0)
SAMPLED = replace(CALM, samples=True)
VERIFIED = replace(CALM, verify=True)
SILENT = Scope(faults=1, losses=0, duplicates=0, crashes_p=0, crashes_d=0)
LATE = Scope(faults=2, losses=0, crashes_p=0, crashes_d=0, without=NARROW - {"cancel"})
TWO = replace(CALM, transfers=2, without=NARROW | {"hold"})
P_DIES = Scope(faults=1, losses=0, duplicates=0, silences=0, crashes_d=0)
D_DIES = Scope(faults=1, losses=0, duplicates=0, silences=0, crashes_p=0, asks_again=False)
D_ASKS_AGAIN = replace(D_DIES, asks_again=True, without=NARROW)
ONE_LOSS = Scope(faults=1, duplicates=0, silences=0, crashes_p=0, crashes_d=0)
IN_TOUCH = Scene(crashes_p=0, crashes_d=0, cut_off=False)
TWO_P = replace(IN_TOUCH, prefill_ranks=2)
TWO_D = replace(IN_TOUCH, decode_ranks=2)
MUTANTS = [
    Mutant("commit before the first token", "I8", SAMPLED, Machines(producer=CommitsBeforeTheToken)),
    Mutant("wait for a token that will not come", "I5", SAMPLED, Machines(producer=ForgetsTheToken)),
    Mutant(
        "give the token to all prompts",
        "I8",
        replace(SAMPLED, transfers=2, without=NARROW | {"hold"}),
        Machines(producer=GivesTheTokenToAll),
    ),
    Mutant(
        "resume with the last rank's commit", "I8", replace(TWO_P, samples=True), Machines(gather=TakesTheLastCommit)
    ),
    Mutant("retry a dirty epoch", "I3", CALM, Machines(producer=RetriesDirty)),
    Mutant("free without fence", "I3", CALM, Machines(consumer=FreesWithoutFence)),
    Mutant("commit on counts only", "I4", CALM, Machines(producer=CommitsOnCounts)),
    Mutant("call a dirty epoch clean", "I3", CALM, Machines(producer=CallsDirtyClean)),
    Mutant("answer a revoke while pushing", "I3", CALM, Machines(producer=AnswersWhilePushing)),
    Mutant("answer a cancel while pushing", "I3", CALM, Machines(producer=CancelsWhilePushing)),
    Mutant("commit after a preemption", "I2", CALM, Machines(producer=CommitsTheVoid)),
    Mutant("release the source early", "I2", CALM, Machines(producer=ReleasesEarly)),
    Mutant("push before it is written", "I1", CALM, Machines(producer=PushesUnwritten)),
    Mutant("answer another process's epoch", "I4", D_ASKS_AGAIN, Machines(producer=ForgetsWhoAsked)),
    Mutant("keep prompts that nobody asks for", "I5", CALM, Machines(producer=KeepsOrphans)),
    Mutant("keep what the dead had reserved", "I5", D_DIES, Machines(producer=MournsForEver)),
    Mutant("keep no tombstones", "I3", LATE, Machines(producer=KeepsNoTombstones)),
    Mutant("let another reservation take over", "I4", D_ASKS_AGAIN, Machines(producer=TakesTheLastReservation)),
    Mutant("keep what D no longer lists", "I5", SILENT, Machines(producer=KeepsUnwanted)),
    Mutant("release before the digest", "digest", VERIFIED, Machines(producer=ReleasesBeforeDigest)),
    Mutant("commit without digests", "digest", VERIFIED, Machines(producer=CommitsUndigested)),
    Mutant("free on a revoke without an answer", "I3", CALM, Machines(consumer=FreesOnRevoke)),
    Mutant("trust a lease", "I3", CALM, Machines(consumer=TrustsALease)),
    Mutant("let a restarted P inherit epochs", "I3", P_DIES, Machines(consumer=IgnoresRestart)),
    Mutant("ignore incarnations", "I4", D_ASKS_AGAIN, Machines(consumer=IgnoresIncarnations)),
    Mutant("reserve before zeroing", "I4", CALM, Machines(consumer=ReservesBeforeZeroing)),
    Mutant("resume unverified", "digest", VERIFIED, Machines(consumer=ResumesUnverified)),
    Mutant("wait for ever", "I5", CALM, Machines(consumer=WaitsForEver)),
    Mutant("never fence", "I5", CALM, Machines(consumer=NeverFences)),
    Mutant("free before the fence is done", "I3", CALM, Machines(consumer=BelievesInFences)),
    Mutant("free everything with a fence", "I3", TWO, Machines(consumer=FencesEverything)),
    Mutant("keep a dead peer", "I5", P_DIES, Machines(consumer=KeepsTheDead)),
    Mutant("ignore a loss that crosses an allocation", "I5", CALM, Machines(consumer=IgnoresACrossing)),
    Mutant(
        "resume on another prompt", "I2", replace(CALM, other_prompt=True), Machines(TakesAnyPrompt, TakesAnyCommit)
    ),
    Mutant("reuse an engine's name", "I3", replace(D_DIES, engine_names_return=True)),
    Mutant("reuse a block before it is void", "I2", replace(CALM, zeroes_first=True)),
    Mutant("resume when the first rank has committed", "I4", TWO_P, Machines(gather=ResumesOnTheFirst)),
    Mutant("resume though a rank had no part", "I4", replace(TWO_P, short=True), Machines(gather=CountsNoParts)),
    Mutant("give back when the first rank has failed", "I3", TWO_P, Machines(gather=GivesBackWithTheFirst)),
    Mutant(
        "resume though a rank means another prompt",
        "I2",
        replace(TWO_P, other_prompt=True),
        Machines(TakesAnyPrompt, TakesAnyCommit),
    ),
    Mutant("release when the first rank lets go", "I2", TWO_D, Machines(fan_out=ReleasesWithTheFirst)),
    Mutant("void for the first rank alone", "I2", TWO_D, Machines(fan_out=VoidsTheFirst)),
    Mutant("say HELLO once", "repair", ONE_LOSS, Machines(consumer=IntroducesItselfOnce)),
    Mutant("say RESERVE once", "repair", ONE_LOSS, Machines(consumer=ReservesOnce)),
    Mutant("say RESERVE with the second beat", "repair", ONE_LOSS, Machines(consumer=ReservesEveryOtherTime)),
    Mutant("say REVOKE once", "repair", ONE_LOSS, Machines(consumer=RevokesOnce)),
    Mutant(
        "say once that nothing is needed",
        "repair",
        replace(ONE_LOSS, without=frozenset({"unanswered"})),
        Machines(consumer=DeclinesOnce),
    ),
    Mutant("beat every five seconds", "repair", ONE_LOSS, Machines(consumer=BeatsSlowly)),
    Mutant("say STARTED once", "repair", ONE_LOSS, Machines(producer=StartsOnce)),
    Mutant("say COMMIT once", "repair", ONE_LOSS, Machines(producer=CommitsOnce)),
    Mutant("say FAIL(clean) once", "repair", ONE_LOSS, Machines(producer=FailsOnce)),
    Mutant("say FAIL(dirty) once", "repair", ONE_LOSS, Machines(producer=FailsDirtyOnce)),
    Mutant("answer no beat", "repair", ONE_LOSS, Machines(producer=AnswersNoBeat)),
    Mutant("introduce nobody", "repair", SILENT, Machines(producer=AsksNobodyIn)),
]


def find(mutant: Mutant) -> Result:
    """Look for a mutant; where faults are counted, by the shortest way to it."""
    if isinstance(mutant.scope, Scope):
        return explore(World(mutant.scope, mutant.machines))
    return exhaust(Sides(mutant.scope, mutant.machines))
