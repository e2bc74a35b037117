"""The nouns of traffic: a `Source` gives out scripts, a `Script` is one user's requests in a row, each an `Ask` in a `Form`."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

Messages = Sequence[Mapping[str, Any]]
Prompt = Sequence[int] | str | Messages  # token ids, text, or a chat
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to be sent."""

    prompt: Prompt
    output_tokens: int
    input_tokens: int = 0  # as planned; 0: unknown until the server counts them
    more: Mapping[str, Any] = field(default_factory=dict)  # further fields of the body
    conversation: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What all requests of a run have in common."""

    model: str
    chat: bool
    ignore_eos: bool = True
    temperature: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)  # further fields; an ask's own come before them

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, ask: Ask) -> bytes:
        """Return the request's body: streamed, with usage, of a fixed length."""
        fields: dict[str, Any] = {"model": self.model, "temperature": self.temperature}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        fields |= {**self.more, **ask.more}
        fields["messages" if self.chat else "prompt"] = ask.prompt
        fields["max_completion_tokens" if self.chat else "max_tokens"] = ask.output_tokens
        return _encode({**fields, "stream": True, "stream_options": {"include_usage": True}})


Script = Generator[
    Ask, str, None
]  # one user's requests: each is sent after the answer to the one before, which it takes


class Source(Protocol):
    """A dataset that users' requests are drawn from."""

    def script(self, index: int) -> Script:
        """Return a script; the same index gives the same one. Negative indices are for warming up."""
