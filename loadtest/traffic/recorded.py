"""Prompts that were written down: a JSONL file of them, or a recorded trace that is replayed.

A line of the JSONL is a string, token ids, or an object with `prompt`, `messages`, or `body` around either. Of an
object, the other fields are sent along; `max_tokens` (or `max_completion_tokens`) decides the answer's length. What
only concerns the way of answering (`model`, `stream`, `n` …) is ours.

A trace has arrivals and lengths and no text, only an id per block of 512 tokens. Blocks with the same id become the same
tokens (or words), so that prompts with equal leading ids have really equal beginnings, and a prefix cache finds them. The
last block is cut to the prompt's length. Scaling lengths scales the blocks, and leaves the sharing as it was.
"""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.loadtest.errors import UsageError
from baton.loadtest.files import numbered_lines
from baton.loadtest.traffic.made_up import Making
from baton.loadtest.traffic.script import Ask, Prompt, Script

_OURS: Final = ("model", "stream", "stream_options", "n", "prompt", "messages", "max_tokens", "max_completion_tokens")
BLOCK_TOKENS: Final = 512  # tokens per hash id
CONVERSATION: Final = Path(__file__).parents[1] / "traces" / "mooncake_conversation_2000.jsonl.gz"
NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The asks of a file, one after the other and from the beginning again."""

    asks: Sequence[Ask]

    def script(self, index: int) -> Script:
        yield self.asks[index % len(self.asks)]


def read_prompts(path: Path, *, chat: bool, output_tokens: int) -> PromptFile:
    """Read a file. Raises `UsageError`: it is empty, or a line (named by its number) cannot be asked here."""
    asks = []
    for number, line in numbered_lines(path):
        try:
            asks.append(to_ask(msgspec.json.decode(line), chat=chat, output_tokens=output_tokens))
        except (*DECODE_ERRORS, UsageError) as exc:
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


class TracedRequest(msgspec.Struct, frozen=True):
    """One request of a trace."""

    timestamp: int  # ms since the trace began
    input_length: int  # tokens
    output_length: int  # tokens
    hash_ids: tuple[int, ...]  # one per block of the prompt; equal ids: the same text up to there


def read_trace(path: Path) -> list[TracedRequest]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return msgspec.json.Decoder(TracedRequest).decode_lines(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a trace is changed."""

    time: float = 1.0  # by which times are multiplied
    length: float = 1.0  # by which lengths are multiplied, before they are capped
    max_input_tokens: int = NO_LIMIT
    max_output_tokens: int = NO_LIMIT

    @property
    def block_tokens(self) -> int:
        return max(1, round(BLOCK_TOKENS * self.length))


class Piece(NamedTuple):
    """A part of a prompt: the first tokens of a block."""

    block: str  # the same name, the same tokens
    tokens: int


def pieces(request: TracedRequest, number: int, scale: Scale) -> list[Piece]:
    """Return what a prompt consists of. Blocks for which the trace has no id are the request's own."""
    whole, rest = divmod(request.input_length, BLOCK_TOKENS)
    lengths = [scale.block_tokens] * whole + ([max(1, round(rest * scale.length))] if rest else [])
    found, left = [], scale.max_input_tokens
    for at, tokens in enumerate(lengths or [1]):
        name = str(request.hash_ids[at]) if at < len(request.hash_ids) else f"own/{number}/{at}"
        found.append(Piece(name, min(tokens, left)))
        left -= found[-1].tokens
        if left == 0:
            break
    return found


def output_tokens(request: TracedRequest, scale: Scale) -> int:
    return max(1, min(round(request.output_length * scale.length), scale.max_output_tokens))


@dataclass(frozen=True, slots=True)
class TraceReplay:
    """The requests of a trace, in its order."""

    making: Making
    requests: Sequence[TracedRequest]
    scale: Scale

    def due_s(self) -> list[float]:
        began = self.requests[0].timestamp
        return [(request.timestamp - began) / 1000 * self.scale.time for request in self.requests]

    def script(self, index: int) -> Script:
        """Return one request. Warming up uses blocks of its own, so that it fills no cache for the run."""
        request = self.requests[index % len(self.requests)]
        parts = pieces(request, index, self.scale)
        if index < 0:
            parts = [Piece(f"warm/{index}/{at}", part.tokens) for at, part in enumerate(parts)]
        yield Ask(
            prompt=self.making.user_message(self._join(parts)),
            input_tokens=sum(part.tokens for part in parts),
            output_tokens=output_tokens(request, self.scale),
        )

    def _join(self, parts: Sequence[Piece]) -> tuple[int, ...] | str:
        making, whole = self.making, self.scale.block_tokens
        if not making.chat:
            ids: list[int] = []
            for part in parts:
                ids += making.vocabulary.ids(f"{making.seed}/block/{part.block}", whole)[: part.tokens]
            return tuple(ids)
        words = []
        for part in parts:
            block = making.vocabulary.text(f"{making.seed}/block/{part.block}", whole).split(" ")
            words += block[: max(1, round(part.tokens / making.vocabulary.tokens_per_word))]
        return " ".join(words)
