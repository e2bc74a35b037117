"""Block ids as a person wants to read them."""

from collections.abc import Iterable


def runs(blocks: Iterable[int]) -> list[str]:
    """Write consecutive ids as one range: 7, 8, 9, 3 → "7-9", "3"."""
    found: list[list[int]] = []
    for block in blocks:
        if found and found[-1][1] + 1 == block:
            found[-1][1] = block
        else:
            found.append([block, block])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]
