"""The machines with one guard taken out. The explorer must find each: that shows that it would see a bug there."""

from dataclasses import replace
from typing import NamedTuple

from kv_connector.handoff.consumer import Consumer
from kv_connector.handoff.producer import Producer
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
    CommitsOnCounts,
    CommitsTheVoid,
    CommitsUndigested,
    ForgetsWhoAsked,
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
from tests.explorer.scope import Scope
from tests.explorer.world import World


class Mutant(NamedTuple):
    """A pair of machines, the scope in which it is caught, and the invariant that it breaks."""

    name: str
    breaks: str
    scope: Scope
    producer: type[Producer] = Producer
    consumer: type[Consumer] = Consumer


CALM = Scope(faults=0, crashes_p=0, crashes_d=0)
VERIFIED = replace(CALM, verify=True)
SILENT = Scope(faults=1, losses=0, duplicates=0, crashes_p=0, crashes_d=0)
LATE = Scope(faults=2, losses=0, crashes_p=0, crashes_d=0)
LEFT_OUT = frozenset({"cancel", "abandon", "void", "hold", "orphan", "overdue", "unanswered", "silence", "beat"})
TWO = replace(CALM, transfers=2, without=LEFT_OUT)
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
    Mutant("keep a dead peer", "I5", P_DIES, consumer=KeepsTheDead),
    Mutant("ignore a loss that crosses an allocation", "I5", CALM, consumer=IgnoresACrossing),
    Mutant("resume on another prompt", "I2", replace(CALM, other_prompt=True), TakesAnyPrompt, TakesAnyCommit),
    Mutant("reuse an engine's name", "I3", replace(D_DIES, engine_names_return=True)),
]


def find(mutant: Mutant) -> Result:
    """Look for a mutant, by the shortest way to it."""
    return explore(World(mutant.scope, mutant.producer, mutant.consumer))
