"""Which requests are computed on a decode node alone, and why. Pure.

One transfer carries the KV of one prompt. Several answers to it (`n`) share it, and each prompt of a batch has one.
What makes engine requests in some other way (beams), or needs the prompt computed where it is decoded (prompt logprobs
skip the prefix cache), stays on one node. In doubt the answer is "alone": the decode node then judges the odd value
itself.
"""

import re
from typing import Final

import msgspec

from baton.proxy.request.fields import Fields, is_false, is_one, is_set, kind_of

BEST_OF: Final = "best_of is greater than 1"
BEAM_SEARCH: Final = "beam search"
PROMPT_LOGPROBS: Final = "prompt logprobs need the prompt computed where it is decoded"
NO_PROMPT: Final = "there is no prompt"
EMBEDDINGS: Final = "the prompt is given as embeddings"
MEDIA: Final = (
    "a prompt with videos, files or items that the client names by a uuid has not been tried between two nodes"
)

_COUNT: Final = re.compile(rb"[1-9]\d{0,3}")
_EMPTY_LIST: Final = re.compile(rb"\[\s*\]")
# In a string of JSON a quote has a backslash before it, so that text about these does not look like them.
_MEDIA: Final = re.compile(
    rb'"type"\s*:\s*"(?:input_)?(?:image|audio|video|file)|"(?:image|audio|video|prompt)_(?:url|embeds|pil)"|"input_audio"'
)
_OF_ONE_NODE: Final = re.compile(rb'"type"\s*:\s*"(?:input_)?(?:video|file)|"video_url"|"(?:image|video)_pil"|"uuid"')
_ADDRESS: Final = re.compile(rb'"(?:url|image_url|audio_url)"\s*:\s*"(?!data:)')
_ITEM_EMBEDDINGS: Final = re.compile(rb'"(?:image|audio|video|prompt)_embeds"')
_LIST_OF_LISTS_OR_STRINGS: Final = re.compile(rb'\[\s*["\[]')


def reason_for_local(fields: Fields) -> str | None:
    """Say why a request cannot be disaggregated; None if it can."""
    if is_set(fields, "best_of") and not is_one(fields, "best_of"):
        return BEST_OF
    if is_set(fields, "use_beam_search") and not is_false(fields, "use_beam_search"):
        return BEAM_SEARCH
    if wants_prompt_logprobs(fields):
        return PROMPT_LOGPROBS
    if is_set(fields, "prompt_embeds"):
        return EMBEDDINGS
    if _has(_MEDIA, fields):
        if _has(_ITEM_EMBEDDINGS, fields):
            return EMBEDDINGS
        if _has(_OF_ONE_NODE, fields):
            return MEDIA
    return NO_PROMPT if _count_listed(fields) == 0 else None


def fetches_items(fields: Fields) -> bool:
    """Return whether the prompt has items that stand elsewhere: each node fetches them, and may find something else."""
    return _has(_MEDIA, fields) and _has(_ADDRESS, fields)


def generates_little(fields: Fields) -> bool:
    """Return whether at most one token is wanted: such a request is scored, and a prefill node can serve it whole."""
    return _limits(fields) in ({b"0"}, {b"1"}, {b"0", b"1"})


def generates_one(fields: Fields) -> bool:
    """Return whether one token is wanted, which a prefill node gives."""
    return _limits(fields) == {b"1"}


def has_several_prompts(fields: Fields) -> bool:
    """Return whether the request is a batch; a list of token ids is one prompt."""
    return _count_listed(fields) > 1


def count_answers(fields: Fields) -> int | None:
    """Return how many answers to each prompt are wanted; None for an odd value, which a node judges."""
    if not is_set(fields, "n"):
        return 1
    return int(bytes(fields["n"])) if _COUNT.fullmatch(memoryview(fields["n"])) else None


def _has(pattern: re.Pattern[bytes], fields: Fields) -> bool:
    return any(pattern.search(memoryview(fields[name])) for name in ("messages", "input") if name in fields)


def _limits(fields: Fields) -> set[bytes]:
    return {bytes(fields[name]).strip() for name in ("max_completion_tokens", "max_tokens") if is_set(fields, name)}


def wants_prompt_logprobs(fields: Fields) -> bool:
    """Return whether log probabilities of the prompt are wanted, by their name or by an echo that has some."""
    if is_set(fields, "prompt_logprobs"):
        return True
    if not is_set(fields, "echo") or is_false(fields, "echo"):
        return False
    # vLLM: `prompt_logprobs = logprobs` for an echoed completion, `= top_logprobs`, 0 by default, for an echoed chat.
    return is_set(fields, "logprobs") or "messages" in fields


def _count_listed(fields: Fields) -> int:
    """How many prompts `prompt` lists; 1 for what is no list of prompts."""
    prompt = fields.get("prompt")
    if prompt is None or kind_of(prompt) != "array":
        return 1
    view = memoryview(prompt)
    if _EMPTY_LIST.match(view):
        return 0
    if not _LIST_OF_LISTS_OR_STRINGS.match(view):
        return 1  # token ids, or something that the decode node will refuse
    return len(msgspec.json.decode(prompt, type=list[msgspec.Raw]))
