"""A prompt's prefixes as numbers that can be compared, without a tokenizer. Pure.

The JSON text of the prompt (of `messages` or `prompt`) is cut into chunks of `CHUNK_BYTES`; number i stands for chunks
0 to i. Two requests whose first i numbers are equal begin with the same text, hence with the same tokens, templates
being the same. The next turn of a conversation goes on within the chunk at the end, which is not full: for that one
`steps` has a number per `STEP_BYTES`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

CHUNK_BYTES: Final = 2048  # about 512 tokens of English
MAX_CHUNKS: Final = 256  # what comes behind makes no difference to the choice of a node
STEP_BYTES: Final = 512

Prefixes = Sequence[int]


def prefixes(text: bytes | memoryview, model: str = "") -> Prefixes:
    """Return one number per full chunk of a prompt's JSON; two models or adapters have none in common.

    They mean something within this process only (`hash` is seeded).
    """
    return [*_numbers(memoryview(text)[: MAX_CHUNKS * CHUNK_BYTES], CHUNK_BYTES, hash(model))]


def steps(text: bytes | memoryview, before: Prefixes, model: str = "") -> Iterator[int]:
    """Yield one number per full step of the chunk behind those whose numbers are given."""
    start = len(before) * CHUNK_BYTES
    view = memoryview(text)[start : min(start, (MAX_CHUNKS - 1) * CHUNK_BYTES) + CHUNK_BYTES]
    return _numbers(view, STEP_BYTES, before[-1] if before else hash(model))


def _numbers(view: memoryview, size: int, number: int) -> Iterator[int]:
    for end in range(size, len(view) + 1, size):
        number = hash((number, bytes(view[end - size : end])))
        yield number
