"""An `Ask` as the bytes that are sent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton.loadtest.traffic.script import Ask

_encode = msgspec.json.Encoder().encode


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
