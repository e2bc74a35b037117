"""`Gather` and `FanOut` with one guard taken out. Each class says which guard it lacks."""

from baton.kv_connector.handoff.fan_out import FanOut
from baton.kv_connector.handoff.gather import Gather, _Gathering
from baton.kv_connector.handoff.incoming import Resolved
from baton.kv_connector.protocol.messages import Commit


class ResumesOnTheFirst(Gather):
    """A request resumes when every rank has committed (I4); here with the first."""

    def _take(self, request_id: str, one: Resolved, now: float) -> None:
        gathering = self._requests.get(request_id)
        if gathering and not gathering.resolved and one.commit is not None and not one.reason:
            self._resolve(request_id, gathering, "", one.commit)
        else:
            super()._take(request_id, one, now)


class TakesTheLastCommit(Gather):
    """The rank that samples says what the first token is (I8); here the rank that commits last does."""

    def _resolve(self, request_id: str, gathering: _Gathering, reason: str, commit: Commit | None) -> None:
        super()._resolve(request_id, gathering, reason, commit and gathering.commits[-1])


class CountsNoParts(Gather):
    """All ranks together must have pushed everything that D has (I4); here that they have committed will do."""

    def _incomplete(self, gathering: _Gathering) -> str:  # not looked at
        return ""


class GivesBackWithTheFirst(Gather):
    """A failed request's blocks come back when no rank can write any more (I3); here with its answer."""

    def _resolve(self, request_id: str, gathering: _Gathering, reason: str, commit: Commit | None) -> None:
        super()._resolve(request_id, gathering, reason, commit)
        if gathering.prepared:
            self.closed.append(request_id)
            gathering.prepared = False


class ReleasesWithTheFirst(FanOut):
    """A prompt keeps its blocks until every rank has let go (I2); here until the first has."""

    def hold(self, request_id: str, now: float) -> None:
        super().hold(request_id, now)
        if self._holding.get(request_id, 0) > 1:
            self._holding[request_id] = 1


class VoidsTheFirst(FanOut):
    """A preempted prompt's epochs are void, all of them (I2); here one is."""

    def void(self, request_id: str, reason: str, now: float) -> None:
        for part in self._parts(request_id)[:1]:
            self._producer.void(part, reason, now)
        if request_id not in self._holding:
            self._forget(request_id)
