"""What a fence costs the streams that are being decoded meanwhile, with 1, 2 and 4 fence domains.

    python -m tests.chaos --only fences

One decode node, two prefill nodes. One of these is stopped in the middle of a push; when it has been silent for
`peer_timeout_s`, the decode node destroys the receiving engine that it writes through, which holds the GIL of the process
that decodes. Streams asked for directly from the decode node show it as a gap between two tokens. The decode node writes
down when it destroyed and made engines, by the clock that the client reads too.
"""

import asyncio
import itertools
import json
import random
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from baton.contracts.configuration.schema import TransferConfig
from benchmarks.usage import descendants
from tests.chaos.cluster import ROUTE, Cluster, Shape, send_signal
from tests.chaos.crowd import Crowd
from tests.chaos.exchange import Exchange
from tests.chaos.ledger import TAG, Watch
from tests.chaos.matrix import table
from tests.chaos.memory import pss_bytes
from tests.chaos.phases import Phase, phase_of
from tests.chaos.workload import Reference, body_of
from tests.e2e.stack import Server, Stack

DOMAINS: Final = (1, 2, 4)
STREAMS: Final = 4
STREAM_TOKENS: Final = 320
MARGIN_S: Final = 0.005  # around a fence: a gap that touches it belongs to it
QUIET_S: Final = 0.5  # gaps further than that from any event are the baseline
CROWD: Final = 4  # requests at once through the proxy, so that pushes from the healthy node go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An engine destroyed or made."""

    kind: str  # "fence" or "make"
    begun_s: float
    ended_s: float

    @property
    def took_s(self) -> float:
        """How long."""
        return self.ended_s - self.begun_s


@dataclass(slots=True, kw_only=True)
class Cost:
    """What was seen with one number of domains."""

    domains: int
    events: list[Event] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # (begin, end) between tokens of one stream
    hit: int = 0  # healthy transfers that ended because of another peer's fence
    threads: int = 0  # of the engine process
    pss_bytes: int = 0


def read_events(path: Path) -> list[Event]:
    """Read what the decode node wrote down."""
    return [Event(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def gaps_at(gaps: Sequence[tuple[float, float]], event: Event) -> list[float]:
    """Return the lengths of the gaps that an event lies in or touches."""
    begun, ended = event.begun_s - MARGIN_S, event.ended_s + MARGIN_S
    return [end - begin for begin, end in gaps if begin < ended and end > begun]


def quiet_gaps(gaps: Sequence[tuple[float, float]], events: Sequence[Event]) -> list[float]:
    """Return the lengths of the gaps that are far from any event."""
    return [
        end - begin
        for begin, end in gaps
        if all(end < event.begun_s - QUIET_S or begin > event.ended_s + QUIET_S for event in events)
    ]


def cost_table(costs: Sequence[Cost]) -> str:
    """Return the finding as Markdown; times in ms."""
    header = ["domains", "fences", "a fence takes", "making an engine takes", "longest gap at a fence, median (max)"]
    header += ["gap elsewhere, median, p99 (max)", "healthy transfers hit", "threads", "PSS (MiB)"]
    return table(header, [_row(cost) for cost in costs])


def _row(cost: Cost) -> tuple[str, ...]:
    fences = [event for event in cost.events if event.kind == "fence"]
    makes = [event for event in cost.events if event.kind == "make"]
    worst = [max(found) for event in fences if (found := gaps_at(cost.gaps, event))]
    quiet = sorted(quiet_gaps(cost.gaps, cost.events))
    return (
        str(cost.domains),
        str(len(fences)),
        _median_and_max([event.took_s for event in fences]),
        _median_and_max([event.took_s for event in makes]),
        _median_and_max(worst),
        f"{_ms(statistics.median(quiet))}, {_ms(quiet[int(0.99 * len(quiet))])} ({_ms(quiet[-1])})" if quiet else "–",
        str(cost.hit),
        str(cost.threads),
        f"{cost.pss_bytes / 2**20:.0f}",
    )


def _median_and_max(times_s: Sequence[float]) -> str:
    return f"{_ms(statistics.median(times_s))} ({_ms(max(times_s))})" if times_s else "–"


def _ms(time_s: float) -> str:
    return f"{1e3 * time_s:.1f}"


class FenceBench:
    """Measures one number of domains."""

    def __init__(self, stack: Stack, references: Sequence[Reference], domains: int) -> None:
        self._events = stack.folder / f"fences-{domains}.jsonl"
        shape = Shape(
            decode=1,
            prefill_blocks=64,
            decode_blocks=160,
            decode_sequences=16,
            transfer=replace(TransferConfig(), receive_engines=domains),
            decode_target="tests.chaos.targets:timed_decode_node",
            decode_kwargs={"events": str(self._events)},
        )
        self._cluster = Cluster(stack, shape)
        self._references = references
        self._model = stack.model
        self._cost = Cost(domains=domains)
        self._stop = False
        self._made = 0

    async def run(self, fences: int) -> Cost:
        """Bring about some fences while streams run."""
        (decode,) = self._cluster.decode
        async with Watch(self._cluster.nodes).running() as watch:
            crowd = Crowd(url=self._cluster.url, model=self._model, references=self._references, rng=_rng())
            streams = [asyncio.create_task(self._stream(decode, index)) for index in range(STREAMS)]
            crowd.start(CROWD)
            await asyncio.sleep(1.0)
            begun = len(read_events(self._events))
            for number in range(fences):
                await self._provoke(watch, self._cluster.prefill[number % 2])
            await crowd.finish(30.0)
            self._stop = True
            await asyncio.gather(*streams)
            self._cost.events = read_events(self._events)[begun:]
            self._cost.hit = sum("fenced" in m.exchange.headers.get("x-baton-reason", "") for m in crowd.members)
        self._measure_process(decode)
        return self._cost

    def stop(self) -> None:
        """Stop the servers."""
        self._cluster.stop()

    async def _stream(self, decode: Server, index: int) -> None:
        """Keep one stream running, asked for directly."""
        prompt = self._references[index % len(self._references)].prompt[:48]
        while not self._stop:
            self._made += 1
            exchange = Exchange(f"{TAG}-{2_000_000 + self._made}", self._body(prompt))
            await exchange.run(decode.url + ROUTE)
            arrivals = exchange.arrivals_s
            self._cost.gaps += itertools.pairwise(arrivals)

    def _body(self, prompt: Sequence[int]) -> dict[str, Any]:
        return body_of(self._model, prompt, STREAM_TOKENS, stream=True)

    async def _provoke(self, watch: Watch, victim: Server) -> None:
        """Stop a prefill node in the middle of a push; let it go on once it has been fenced off."""
        before = _fences(read_events(self._events))
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            picture = await watch.next()
            mine = (view for view in picture.views.values() if view.prefill and view.prefill.node == victim.name)
            if any(phase_of(view, self._cluster.column_bytes) is Phase.BETWEEN_LAYERS for view in mine):
                break
        send_signal(victim, signal.SIGSTOP)
        try:
            while _fences(read_events(self._events)) == before and time.monotonic() < deadline:  # noqa: ASYNC110  # a file
                await asyncio.sleep(0.05)  # it is another process that writes
        finally:
            send_signal(victim, signal.SIGCONT)
        await asyncio.sleep(3.0)  # until the proxy uses it again

    def _measure_process(self, decode: Server) -> None:
        assert decode.child is not None
        engine = max(descendants(decode.child.pid), key=pss_bytes)
        self._cost.pss_bytes = pss_bytes(engine)
        self._cost.threads = len(list(Path(f"/proc/{engine}/task").iterdir()))


def _fences(events: Sequence[Event]) -> int:
    return sum(event.kind == "fence" for event in events)


def _rng() -> random.Random:
    return random.Random("fences")
