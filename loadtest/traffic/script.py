"""The nouns of traffic: an `Ask` is one request, a `Script` one user's requests in a row, a `Source` gives out scripts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Messages = Sequence[Mapping[str, Any]]
Prompt = Sequence[int] | str | Messages  # token ids, text, or a chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to be sent."""

    prompt: Prompt
    output_tokens: int
    input_tokens: int = 0  # as planned; 0: unknown until the server counts them
    more: Mapping[str, Any] = field(default_factory=dict)  # further fields of the body
    conversation: int = 0
    turn: int = 0


class Script(Protocol):
    """One user's requests, each sent after the answer to the one before."""

    def first(self) -> Ask: ...

    def following(self, answer: str) -> Ask | None:
        """Return the request that follows an answer; None at the end."""
        ...


class Source(Protocol):
    """A dataset."""

    @property
    def turns(self) -> int:
        """Requests of each script."""
        ...

    def script(self, index: int) -> Script:
        """Return a script; the same index gives the same one. Negative indices are for warming up."""
        ...


@dataclass(frozen=True, slots=True)
class Single:
    """A script of one request."""

    ask: Ask

    def first(self) -> Ask:
        return self.ask

    def following(self, answer: str) -> Ask | None:  # noqa: ARG002  # `Script`'s signature
        return None
