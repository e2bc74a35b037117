"""Samples → figures: what a request, a chunk and a start cost, and ratios between subjects. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks import harness
from benchmarks.harness import Spread

BATON: Final = "baton"
ASGI: Final = "asgi-relay"
HTTPX: Final = "httpx-relay"
VLLM_ROUTER: Final = "vllm-router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One subject in one round."""

    short_requests: int
    short_cpu_s: float  # of the proxy's process tree, as all CPU here
    single_first_token_s: float  # median, one request at a time
    direct_first_token_s: float  # the same without a proxy
    starts_s: float  # median time to the first token of short streams; connections are open where a proxy keeps them
    last_start_s: float  # of these, the longest
    starts_cpu_s: float  # of these, for one such start
    chunks: int  # that the long streams have beyond those of as many short ones
    streams_cpu_s: float  # of the long streams, whole
    streams_s: float  # from the first request to the last byte
    direct_streams_s: float  # the same without a proxy


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of one sample."""

    name: str
    unit: str
    of: Callable[[Sample], float]


class Target(NamedTuple):
    """What Baton is to reach: a bound for Baton ÷ other, or for other ÷ Baton where it is to be better by a factor."""

    metric: Metric
    other: str
    bound: float
    by_factor: bool = False


class Verdict(NamedTuple):
    """Whether Baton reached a target, and the ratio seen."""

    target: Target
    ratio: Spread | None  # in the target's direction; None: the other was not there
    met: bool | None


def request_us(sample: Sample) -> float:
    return sample.short_cpu_s / sample.short_requests * 1e6


def chunk_us(sample: Sample) -> float:
    """CPU of one relayed chunk: what long streams cost more than as many short ones."""
    return (sample.streams_cpu_s - sample.starts_cpu_s) / sample.chunks * 1e6


def added_us(sample: Sample) -> float:
    """How much later the first token comes than without the proxy."""
    return (sample.single_first_token_s - sample.direct_first_token_s) * 1e6


REQUEST: Final = Metric("CPU per request", "µs", request_us)
CHUNK: Final = Metric("CPU per chunk", "µs", chunk_us)
ADDED: Final = Metric("added first-token latency", "µs", added_us)
STARTS: Final = Metric("first token of simultaneous starts", "ms", lambda sample: sample.starts_s * 1e3)
STRETCH: Final = Metric("stretch", "×", lambda sample: sample.streams_s / sample.direct_streams_s)
METRICS: Final = (REQUEST, CHUNK, ADDED, STARTS, STRETCH)

TARGETS: Final = (
    Target(REQUEST, HTTPX, 8.0, by_factor=True),
    Target(CHUNK, HTTPX, 3.0, by_factor=True),
    Target(REQUEST, ASGI, 1.35),
    Target(CHUNK, VLLM_ROUTER, 1.25),
    Target(CHUNK, VLLM_ROUTER, 1.0),  # hoped for
    Target(ADDED, ASGI, 1.25),
    Target(STARTS, ASGI, 1.25),
)


def over_rounds(metric: Metric, samples: Sequence[Sample]) -> Spread:
    return harness.spread([metric.of(sample) for sample in samples])


def ratio(metric: Metric, above: Sequence[Sample], below: Sequence[Sample]) -> Spread:
    """Return a ratio of two subjects, taken round by round: what disturbs a round disturbs both."""
    return harness.ratio(*(list(map(metric.of, samples)) for samples in (above, below)))


def verdict_of(target: Target, samples: Mapping[str, Sequence[Sample]]) -> Verdict:
    if target.other not in samples:
        return Verdict(target, None, None)
    ours, others = samples[BATON], samples[target.other]
    if target.by_factor:
        found = ratio(target.metric, others, ours)
        return Verdict(target, found, found.median >= target.bound)
    found = ratio(target.metric, ours, others)
    return Verdict(target, found, found.median <= target.bound)
