"""Prefixes of prompts as numbers."""

import random

import pytest

from baton.proxy.routing.prefixes import CHUNK_BYTES, MAX_CHUNKS, STEP_BYTES, Steps, prefixes


def common(one: bytes, other: bytes) -> int:
    pairs = zip(prefixes(one), prefixes(other), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(prefixes(one)), len(prefixes(other))))


def test_two_texts_share_as_many_numbers_as_full_chunks() -> None:
    """A change anywhere changes the number of its chunk and all that follow, and none before."""
    rng = random.Random(1)
    text = rng.randbytes(10 * CHUNK_BYTES + 100)

    for _ in range(200):
        place = rng.randrange(len(text))
        other = bytearray(text)
        other[place] ^= 1 << rng.randrange(8)
        assert common(text, bytes(other)) == min(place // CHUNK_BYTES, 10)


def test_short_prompts_have_no_numbers_and_long_ones_not_more_than_matter() -> None:
    """Nothing to follow below one chunk; work that is bounded above."""
    assert list(prefixes(b"x" * (CHUNK_BYTES - 1))) == []
    assert len(prefixes(memoryview(bytes((MAX_CHUNKS + 9) * CHUNK_BYTES)))) == MAX_CHUNKS


def steps(text: bytes, depth: int, model: str = "m") -> list[int]:
    return [*Steps(text, prefixes(text, model), model)(depth)]


@pytest.mark.parametrize("depth", [0, 3])
def test_steps_are_those_of_the_chunk_behind(depth: int) -> None:
    text = random.Random(1).randbytes((depth + 2) * CHUNK_BYTES)
    whole = steps(text, depth)

    assert len(whole) == CHUNK_BYTES // STEP_BYTES
    assert not {*whole} & {*prefixes(text, "m"), *steps(text, depth, "other"), *steps(text[1:], depth)}
    assert not depth or not {*whole} & {*steps(bytes(CHUNK_BYTES) + text[CHUNK_BYTES:], depth)}
    assert steps(text[: depth * CHUNK_BYTES + 2 * STEP_BYTES + 1], depth) == whole[:2]


def test_behind_the_chunks_that_matter_there_are_no_steps() -> None:
    assert steps(bytes((MAX_CHUNKS + 9) * CHUNK_BYTES), MAX_CHUNKS) == []
