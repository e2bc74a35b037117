"""The fewest nodes that keep a share of the promises. Pure: asks a function what share so many nodes keep.

decode
  │  x              x: the fewest decode nodes for so many prefill nodes
  │  x x            A staircase, since more on one side never needs more on the other. Its ends are found with plenty
  │      x          on the other side; from one end it is walked to the other, unless no cheaper pair can follow.
  │        x x x
  └──────────────── prefill
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from baton.loadtest.errors import RunError
from baton.loadtest.plan.simulate import Shape

STRIDES: Final = 32  # a walk takes steps of this part of the nodes; the end is exact again

Share = Callable[[Shape], float]  # of requests that kept every promise


class Prices(NamedTuple):
    """What a node costs."""

    prefill: float = 1.0
    decode: float = 1.0

    def of(self, shape: Shape) -> float:
        return self.prefill * shape.prefill + self.decode * shape.decode


EQUAL: Final = Prices()


def cheapest(share: Share, *, target: float, most: int, prices: Prices = EQUAL) -> Shape:
    """Return the cheapest shape, at most `most` nodes a side, that keeps `target`. Raises `RunError`: there is none."""

    def enough(prefill: int, decode: int) -> bool:
        return share(Shape(prefill, decode)) >= target

    if not enough(most, most):
        kept = share(Shape(most, most))
        raise RunError(f"even {most} prefill and {most} decode nodes keep the SLOs of {kept:.1%} of the requests only")
    prefill = _least(lambda n: enough(n, most), 1, most)
    least_decode = _least(lambda n: enough(most, n), 1, most)
    decode = _least(partial(enough, prefill), least_decode, most)
    best = Shape(prefill, decode)
    stride = max(1, prefill // STRIDES)
    while decode > least_decode and prefill < most:
        prefill = min(prefill + stride, most)
        if prices.of(Shape(prefill, least_decode)) >= prices.of(best):
            break
        decode = _least(partial(enough, prefill), least_decode, decode)
        best = min(best, Shape(prefill, decode), key=prices.of)
    fewer = _least(lambda n: enough(n, best.decode), max(1, best.prefill - stride), best.prefill)
    return Shape(fewer, best.decode)


def _least(enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number from `low` to `high` that is enough, given that `high` is; looks at the low end first."""
    step = 1
    while low < high:
        at = min(low + step - 1, (low + high) // 2)
        if enough(at):
            high = at
        else:
            low, step = at + 1, step * 2
    return low


def neighbours(shape: Shape, most: int) -> list[Shape]:
    by_prefill, by_decode = max(1, shape.prefill // 10), max(1, shape.decode // 10)
    around = [
        Shape(prefill, decode)
        for prefill in (shape.prefill - by_prefill, shape.prefill, shape.prefill + by_prefill)
        for decode in (shape.decode - by_decode, shape.decode, shape.decode + by_decode)
    ]
    return [one for one in around if min(one) >= 1 and max(one) <= most]
