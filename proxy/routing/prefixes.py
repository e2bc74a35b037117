"""A prompt's prefixes as numbers that can be compared, without a tokenizer. Pure.

The JSON text of the prompt (of `messages` or `prompt`) is cut into chunks of `CHUNK_BYTES`; number i stands for chunks
0 to i. Two requests whose first i numbers are equal begin with the same text, hence with the same tokens, templates
being the same. The chunk at the end that is not full is left out: the next turn of a conversation goes on within it.
"""

from collections.abc import Sequence
from typing import Final

CHUNK_BYTES: Final = 2048  # about 512 tokens of English
MAX_CHUNKS: Final = 256  # what comes behind makes no difference to the choice of a node

Prefixes = Sequence[int]


def prefixes(text: bytes | memoryview, model: str = "") -> Prefixes:
    """Return one number per full chunk of a prompt's JSON; two models or adapters have none in common.

    They mean something within this process only (`hash` is seeded).
    """
    found: list[int] = []
    view = memoryview(text)
    number = hash(model)
    for end in range(CHUNK_BYTES, min(len(view), MAX_CHUNKS * CHUNK_BYTES) + 1, CHUNK_BYTES):
        number = hash((number, bytes(view[end - CHUNK_BYTES : end])))
        found.append(number)
    return found
