"""A prompt's prefixes as numbers that can be compared, without a tokenizer. Pure.

The JSON text of the prompt (of `messages` or `prompt`) is cut into chunks of `CHUNK_BYTES`; number i stands for chunks
0 to i. Two requests whose first i numbers are equal begin with the same text, hence with the same tokens, templates
being the same. The next turn of a conversation goes on within the chunk at the end, which is not full: for that one
`Steps` has a number per `STEP_BYTES`.
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


class Steps:
    """Gives one number per full step of the chunk behind so many others, made once."""

    __slots__ = ("_chunks", "_known", "_model", "_text")

    def __init__(self, text: bytes | memoryview, chunks: Prefixes, model: str = "") -> None:
        """`chunks`: what `prefixes` returned for the text."""
        self._text = text
        self._chunks = chunks
        self._model = model
        self._known: dict[int, Prefixes] = {}

    def __call__(self, depth: int) -> Prefixes:
        if (known := self._known.get(depth)) is None:
            start = depth * CHUNK_BYTES
            view = memoryview(self._text)[start : min(start, (MAX_CHUNKS - 1) * CHUNK_BYTES) + CHUNK_BYTES]
            known = self._known[depth] = [*_numbers(view, STEP_BYTES, self._before(depth))] if view else ()
        return known

    def _before(self, depth: int) -> int:
        return self._chunks[depth - 1] if depth else hash(self._model)


NO_STEPS: Final = Steps(b"", ())


def _numbers(view: memoryview, size: int, number: int) -> Iterator[int]:
    for end in range(size, len(view) + 1, size):
        number = hash((number, bytes(view[end - size : end])))
        yield number
