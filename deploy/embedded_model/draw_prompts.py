"""Draw the listed prompts anew: `python -m baton.deploy.embedded_model.draw_prompts`. Needed only when the corpus changes.

Lengths are spread evenly on a logarithmic scale. A prompt starts and ends between words, and a conversation's starts
at its beginning, as it would in a request.
"""

import json
import random

from tokenizers import Tokenizer

from baton.deploy.embedded_model import tokenizer as tokens
from baton.deploy.embedded_model.corpus import USER
from baton.deploy.embedded_model.prompts import CONTINUATION_TOKENS, LISTED, Span

COUNT = 200
LONGEST_TOKENS = 3500
SEED = 20
SHIFT = 7  # flattens the lower end: without it a tenth of the prompts would have one token


def lengths() -> list[int]:
    """Return `COUNT` lengths from 1 to `LONGEST_TOKENS`."""
    ratio = (LONGEST_TOKENS + SHIFT) / (1 + SHIFT)
    return [round((1 + SHIFT) * ratio ** (i / (COUNT - 1))) - SHIFT for i in range(COUNT)]


def draw(documents: list[list[int]], tokenizer: Tokenizer) -> list[Span]:
    """Return one span for each length; no two hold the same tokens."""
    rng = random.Random(SEED)
    user = tokenizer.encode(USER).ids[0]
    chosen: dict[tuple[int, ...], Span] = {}
    for length in lengths():
        while True:
            span = _candidate(documents, length, rng, user)
            ids = tuple(documents[span.document][span.start : span.start + length])
            if ids not in chosen and _is_fit(span, documents[span.document], tokenizer):
                chosen[ids] = span
                break
    return list(chosen.values())


def _candidate(documents: list[list[int]], length: int, rng: random.Random, user: int) -> Span:
    [document] = rng.choices(range(len(documents)), weights=[len(document) for document in documents])
    ids = documents[document]
    spare = len(ids) - length - CONTINUATION_TOKENS
    return Span(document, 0 if user in ids or spare < 0 else rng.randint(0, spare), length)


def _is_fit(span: Span, ids: list[int], tokenizer: Tokenizer) -> bool:
    end = span.start + span.tokens
    if end + CONTINUATION_TOKENS > len(ids) or not all(_opens_word(ids, i, tokenizer) for i in (span.start, end)):
        return False
    text = tokenizer.decode(ids[span.start : end], skip_special_tokens=False)
    return bool(tokenizer.encode(text).ids == ids[span.start : end])


def _opens_word(ids: list[int], index: int, tokenizer: Tokenizer) -> bool:
    """Tell whether token `index` does not continue the word of the token before it."""
    before, here = (tokenizer.decode(ids[i : i + 1], skip_special_tokens=False) for i in (index - 1, index))
    return index == 0 or not (before[-1:].isalnum() and here[:1].isalnum())


def main() -> None:
    tokenizer = tokens.load()
    rows = [json.dumps(span) for span in draw(tokens.encode_corpus(tokenizer), tokenizer)]
    LISTED.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
