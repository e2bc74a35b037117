"""Which requests are computed on a decode node alone, and why. Pure.

One transfer carries the KV of one prompt to one engine request. A request that makes several engine requests (`n`,
batches, beams), or that needs the prompt computed where it is decoded (prompt logprobs skip the prefix cache),
is not covered by the protocol yet. In doubt the answer is "alone": the decode node then judges the odd value itself.
"""

import re
from typing import Final

import msgspec

from proxy.fields import Fields, is_false, is_one, is_set, kind_of

SEVERAL_SEQUENCES: Final = "n is greater than 1"
BEST_OF: Final = "best_of is greater than 1"
BEAM_SEARCH: Final = "beam search"
PROMPT_LOGPROBS: Final = "prompt logprobs need the prompt computed where it is decoded"
BATCH: Final = "several prompts in one request"
EMBEDDINGS: Final = "the prompt is given as embeddings"

_LIST_OF_LISTS_OR_STRINGS: Final = re.compile(rb'\[\s*["\[]')


def reason_for_local(fields: Fields) -> str | None:
    """Say why a request cannot be disaggregated; None if it can.

    Args:
        fields: the top level of the request's body, values undecoded.
    """
    if is_set(fields, "n") and not is_one(fields, "n"):
        return SEVERAL_SEQUENCES
    if is_set(fields, "best_of") and not is_one(fields, "best_of"):
        return BEST_OF
    if is_set(fields, "use_beam_search") and not is_false(fields, "use_beam_search"):
        return BEAM_SEARCH
    if _wants_prompt_logprobs(fields):
        return PROMPT_LOGPROBS
    if is_set(fields, "prompt_embeds"):
        return EMBEDDINGS
    return BATCH if _is_batch(fields) else None


def _wants_prompt_logprobs(fields: Fields) -> bool:
    if is_set(fields, "prompt_logprobs"):
        return True
    if not is_set(fields, "echo") or is_false(fields, "echo"):
        return False
    # vLLM: `prompt_logprobs = logprobs` for an echoed completion, `= top_logprobs`, 0 by default, for an echoed chat.
    return is_set(fields, "logprobs") or "messages" in fields


def _is_batch(fields: Fields) -> bool:
    """Return whether `prompt` is a list of other than one prompt; a list of token ids is one prompt."""
    prompt = fields.get("prompt")
    if prompt is None or kind_of(prompt) != "array":
        return False
    if not _LIST_OF_LISTS_OR_STRINGS.match(memoryview(prompt)):
        return False  # token ids, or something that the decode node will refuse
    return len(msgspec.json.decode(prompt, type=list[msgspec.Raw])) != 1
