"""Which node gets a request: small policies over what is in flight. Pure.

A policy sees candidates that are all allowed; it only ranks them. A policy that follows prefixes will look at
`Work.prefix`, which is why a policy is asked with the work and not only with the candidates.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar


class Work(NamedTuple):
    """What a policy knows of the request."""

    prompt_bytes: int
    turn: int  # counts requests; rotates ties, so that idle nodes take turns


class Load(Protocol):
    """What a policy knows of a candidate."""

    @property
    def requests(self) -> int:
        """Requests in flight."""
        ...

    @property
    def prompt_bytes(self) -> int:
        """Prompt work in flight."""
        ...


Candidate = TypeVar("Candidate", bound=Load)


class Policy(Protocol):
    """Chooses one of at least one candidates."""

    def choose(self, work: Work, candidates: Sequence[Candidate]) -> Candidate:
        """Return the candidate that gets the work."""
        ...


class LeastPromptWork:
    """The node with the fewest bytes of prompt in flight; for prefill nodes, whose time goes into prompts."""

    def choose(self, work: Work, candidates: Sequence[Candidate]) -> Candidate:
        """Return the least loaded candidate."""
        return min(_rotated(candidates, work.turn), key=lambda load: (load.prompt_bytes, load.requests))


class LeastRequests:
    """The node with the fewest requests in flight; for decode nodes, whose time goes into sequences."""

    def choose(self, work: Work, candidates: Sequence[Candidate]) -> Candidate:
        """Return the least loaded candidate."""
        return min(_rotated(candidates, work.turn), key=lambda load: (load.requests, load.prompt_bytes))


POLICIES: Final[dict[str, Policy]] = {
    "least_prompt_work": LeastPromptWork(),
    "least_requests": LeastRequests(),
}


def _rotated(candidates: Sequence[Candidate], turn: int) -> list[Candidate]:
    start = turn % len(candidates)
    return [*candidates[start:], *candidates[:start]]
