"""The 200 listed prompts: what parity checks send, from 1 to 3,500 tokens.

`prompts.json` lists them as `[document, start, tokens]` spans of the tokenised corpus; `draw_prompts.py` drew them.
Their text form encodes to the same ids, so that either form may be sent. Nothing here needs torch.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

from baton.deploy.embedded_model import tokenizer

LISTED = Path(__file__).parent / "prompts.json"
CONTINUATION_TOKENS = 24  # every span is followed by at least so many tokens of its document


class Span(NamedTuple):
    """A stretch `[start, start + tokens)` of one document of the corpus."""

    document: int
    start: int
    tokens: int


def spans() -> list[Span]:
    """Return where the prompts lie, shortest first."""
    return [Span(*row) for row in json.loads(LISTED.read_text())]


def prompts() -> list[list[int]]:
    """Return the token ids of the prompts, shortest first."""
    documents = _documents()
    return [list(documents[span.document][span.start : span.start + span.tokens]) for span in spans()]


def texts() -> list[str]:
    """Return the prompts as text, special tokens included, in the order of `prompts()`."""
    decoded: list[str] = tokenizer.load().decode_batch(prompts(), skip_special_tokens=False)
    return decoded


@cache
def _documents() -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, tokenizer.encode_corpus(tokenizer.load())))
