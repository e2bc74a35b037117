"""200 prompts for the embedded model: what parity checks send, from 1 to 3,500 tokens.

`listed_prompts.json` lists them as `[document, start, tokens]` spans of the tokenised corpus, shortest first; each is followed
by 24 tokens of its document or more. Their text form encodes to the same ids, so that either form may be sent. Nothing
here needs torch.
"""

import json
from functools import cache
from pathlib import Path

from baton.deploy.embedded_model import tokenizer


def prompts() -> list[list[int]]:
    spans = json.loads(Path(__file__).with_suffix(".json").read_text())
    return [list(_documents()[document][start : start + tokens]) for document, start, tokens in spans]


def texts() -> list[str]:
    decoded: list[str] = tokenizer.load().decode_batch(prompts(), skip_special_tokens=False)
    return decoded


@cache
def _documents() -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, tokenizer.encode_corpus(tokenizer.load())))
