"""When the requests of an open loop are due, by the rules of `vllm.benchmarks.serve`.

Distances follow a gamma distribution with the shape `burstiness`: 1 is a Poisson process, less is burstier, more is more
even, infinite is a metronome. Without a ramp they are stretched so that the last request is due at count ÷ rate exactly:
otherwise chance alone would make runs of different seeds 1 or 2 % faster or slower. A ramp is linear in the index.
"""

import math
import random
from itertools import accumulate


def arrivals(
    count: int, rate_per_s: float, *, burstiness: float = 1.0, ramp_to_per_s: float | None = None, seed: int = 0
) -> list[float]:
    """Return the seconds after which each of `count` requests is due, ascending."""
    rng = random.Random(f"{seed}/arrivals")
    rates = [rate_at(index, count, rate_per_s, ramp_to_per_s) for index in range(count)]
    due = list(accumulate(_distance(rng, rate, burstiness) for rate in rates))
    if ramp_to_per_s is not None or not due or not due[-1]:
        return due
    stretch = count / rate_per_s / due[-1]
    return [at * stretch for at in due]


def rate_at(index: int, count: int, rate_per_s: float, ramp_to_per_s: float | None) -> float:
    if ramp_to_per_s is None:
        return rate_per_s
    return rate_per_s + (ramp_to_per_s - rate_per_s) * index / max(count - 1, 1)


def _distance(rng: random.Random, rate_per_s: float, burstiness: float) -> float:
    if math.isinf(burstiness):
        return 1 / rate_per_s
    return rng.gammavariate(burstiness, 1 / (rate_per_s * burstiness))
