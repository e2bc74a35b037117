"""A vLLM server in virtual time: how long its steps take, and what its prefix cache has, which never fills."""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from benchmarks.placement.traffic import Request

_STEP_TOKENS: Final = 2048  # of prompts; a longer prompt is computed in chunks
# Parts of `Hardware.step_s`:
_WITHOUT_STREAMS: Final = 0.6  # what a step takes that has prompts alone
_CHUNK: Final = 0.3  # more for each chunk of a prompt
_IDLE_TTFT: Final = 2.3  # a prompt of one chunk takes 1.9 on an idle node, one of two 2.8


class Hardware(NamedTuple):
    """How fast a node is."""

    step_s: float
    stream_s: float  # more for each stream
    token_s: float  # more for each token of a prompt
    attention_s: float  # more, times the square of a prompt's tokens

    def prompt_s(self, tokens: int, cached_tokens: int = 0) -> float:
        """Return what so many tokens of a prompt take, of which the first ones are there."""
        squares = tokens * tokens - cached_tokens * cached_tokens
        return (tokens - cached_tokens) * self.token_s + self.attention_s * squares

    def idle_ttft_s(self, tokens: int) -> float:
        return _IDLE_TTFT * self.step_s + self.prompt_s(tokens)

    @property
    def idle_tpot_s(self) -> float:
        return self.step_s + self.stream_s


HARDWARE: Final = {"cpu": Hardware(0.013, 0.0019, 2.2e-4, 7e-8), "gpu": Hardware(0.012, 0.0003, 2e-5, 5e-10)}


class Timeline:
    """Events in virtual time; those of one instant in the order in which they were added."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def add(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._numbers), event))

    def is_empty(self) -> bool:
        return not self._events

    def run(self) -> None:
        while self._events:
            self.now_s, _, event = heapq.heappop(self._events)
            event()


@dataclass(slots=True, eq=False)
class Served:
    """A request, and how far it is."""

    request: Request
    prefill: "Engine"
    decode: "Engine"  # makes the tokens behind the first
    on_first_token: Callable[[], None] = lambda: None
    on_end: list[Callable[[], None]] = field(default_factory=list)
    arrived_s: float = 0.0
    left_tokens: int = 0  # of the prompt; 0: it is not begun, or done
    ttft_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    tokens: int = 0

    @property
    def tpot_s(self) -> float:
        return (self.last_token_s - self.first_token_s) / (self.tokens - 1)


class Engine:
    """In each step it makes a token for each of its streams, and computes prompts in the order in which they came."""

    def __init__(self, hardware: Hardware, timeline: Timeline) -> None:
        self.streams: list[Served] = []
        self.inter_token_count = 0
        self.inter_token_sum_s = 0.0
        self._hardware = hardware
        self._timeline = timeline
        self._prompts: deque[Served] = deque()
        self._cached_tokens: dict[int, int] = {}  # by conversation
        self._is_busy = False

    def add_prompt(self, served: Served) -> None:
        served.arrived_s = self._timeline.now_s
        self._prompts.append(served)
        self._begin_step()

    def add_stream(self, served: Served) -> None:
        """Go on with a request whose first token and KV are there."""
        self._remember(served)
        self.streams.append(served)
        self._begin_step()

    def _begin_step(self) -> None:
        """Begin a step, unless one is under way or there is nothing to do."""
        if self._is_busy or not (self._prompts or self.streams):
            return
        self._is_busy = True
        step_s = self._hardware.step_s
        took_s = step_s + self._hardware.stream_s * len(self.streams) if self.streams else _WITHOUT_STREAMS * step_s
        computed: list[Served] = []
        budget = _STEP_TOKENS
        while self._prompts and budget:
            served = self._prompts[0]
            cached = len(served.request.prompt) - (served.left_tokens or self._new_tokens(served.request))
            chunk = min(budget, len(served.request.prompt) - cached)
            took_s += self._hardware.prompt_s(cached + chunk, cached) + _CHUNK * step_s
            budget -= chunk
            served.left_tokens = len(served.request.prompt) - cached - chunk
            if not served.left_tokens:
                computed.append(self._prompts.popleft())
        self._timeline.add(self._timeline.now_s + took_s, partial(self._end_step, [*self.streams], computed))

    def _end_step(self, streams: Sequence[Served], computed: Sequence[Served]) -> None:
        for served in streams:
            self._add_token(served)
        for served in computed:
            self._add_first_token(served)
        self._is_busy = False
        self._begin_step()

    def _add_token(self, served: Served) -> None:
        now_s = self._timeline.now_s
        self.inter_token_count += 1
        self.inter_token_sum_s += now_s - served.last_token_s
        served.last_token_s = now_s
        served.tokens += 1
        if served.tokens == served.request.output_tokens:
            self.streams.remove(served)
            self._remember(served)
            for end in served.on_end:
                end()

    def _add_first_token(self, served: Served) -> None:
        served.first_token_s = served.last_token_s = self._timeline.now_s
        served.ttft_s = self._timeline.now_s - served.arrived_s + self._hardware.step_s  # one step on its way
        served.tokens = 1
        self._remember(served)
        served.on_first_token()
        served.decode.add_stream(served)

    def _new_tokens(self, request: Request) -> int:
        """Return how many tokens of a prompt have to be computed: its last one in any case."""
        tokens, cached = len(request.prompt), self._cached_tokens.get(request.conversation, 0)
        return tokens - min(cached, request.shared_tokens, tokens - 1)

    def _remember(self, served: Served) -> None:
        """Keep a conversation so far; the last token has no KV yet."""
        self._cached_tokens[served.request.conversation] = len(served.request.prompt) + served.tokens - 1
