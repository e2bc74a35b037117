"""Prompts from a JSONL file. A line is a string, token ids, or an object with `prompt`, `messages`, or `body` around either.

Of an object, the other fields are sent along; `max_tokens` (or `max_completion_tokens`) decides the answer's length. What
only concerns the way of answering (`model`, `stream`, `n` …) is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeGuard

import msgspec

from baton.loadtest.errors import UsageError
from baton.loadtest.files import numbered_lines
from baton.loadtest.traffic.script import Ask, Prompt, Script

_OURS: Final = ("model", "stream", "stream_options", "n", "prompt", "messages", "max_tokens", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The asks of a file, one after the other and from the beginning again."""

    asks: Sequence[Ask]
    turns: int = 1

    def script(self, index: int) -> Script:
        yield self.asks[index % len(self.asks)]


def read_prompts(path: Path, *, chat: bool, output_tokens: int) -> PromptFile:
    """Read a file. Raises `UsageError`: it is empty, or a line (named by its number) cannot be asked here."""
    asks = []
    for number, line in numbered_lines(path):
        try:
            asks.append(to_ask(msgspec.json.decode(line), chat=chat, output_tokens=output_tokens))
        except (msgspec.DecodeError, UsageError) as exc:
            raise UsageError(f"{path}, line {number}: {exc}") from exc
    if not asks:
        raise UsageError(f"{path} has no prompts")
    return PromptFile(asks)


def to_ask(value: Any, *, chat: bool, output_tokens: int) -> Ask:
    if isinstance(value, dict) and isinstance(value.get("body"), dict):
        value = value["body"]
    fields: Mapping[str, Any] = value if isinstance(value, dict) else {"prompt": value}
    asked = fields.get("max_completion_tokens") or fields.get("max_tokens") or output_tokens
    if not isinstance(asked, int) or asked < 1:
        raise UsageError(f"max_tokens is {asked!r}")
    prompt = _prompt(fields, chat=chat)
    return Ask(
        prompt=prompt,
        output_tokens=asked,
        input_tokens=len(prompt) if _are_ids(prompt) else 0,
        more={name: field for name, field in fields.items() if name not in _OURS},
    )


def _prompt(fields: Mapping[str, Any], *, chat: bool) -> Prompt:
    prompt, messages = fields.get("prompt"), fields.get("messages")
    if messages is not None:
        if not chat:
            raise UsageError("messages need --endpoint chat")
        if not (isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)):
            raise UsageError("messages is no list of messages")
        return messages
    if isinstance(prompt, str) and prompt:
        return [{"role": "user", "content": prompt}] if chat else prompt
    if _are_ids(prompt):
        if chat:
            raise UsageError("token ids need --endpoint completions")
        return prompt
    raise UsageError("neither a prompt (text or token ids) nor messages")


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
