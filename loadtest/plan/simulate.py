"""The clock: moves requests from their arrival over a prefill and a decode node to their last token.

arrival ─► both nodes are chosen ─► P: line, steps ─► links ─► D: next step, first token … last token
                └─► D: room in the KV pool, which the links wait for

Each node has one link, full duplex; what is handed to a link queues behind what it has not yet sent.

P computes   ├── layer 1 ──┼── layer 2 ──┼── layer 3 ──┤
link         ┆             ├─ 1 ─┤       ├─ 2 ─┤       ├─ 3 ─┤      fast link: the last layer shows
link         ┆             ├──── 1 ────┼──── 2 ────┼──── 3 ────┤    slow link: its whole backlog shows

Which node gets a request: the proxy's default policies, on what the simulation knows. P by prefix affinity: the least
of prompt tokens in flight and of this prompt's tokens that are new to the node. D by least load: bytes of prompt in
flight and 16 KiB for each sequence (`proxy/nodes/node.py`).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from baton.loadtest.errors import RunError
from baton.loadtest.measures.record import TIMEOUT, Record
from baton.loadtest.plan.calibration import Calibration
from baton.loadtest.plan.demand import Demand, Job
from baton.loadtest.plan.nodes import DecodeNode, PrefillNode

SEQUENCE_TOKENS: Final = 4096  # 16 KiB of prompt, at 4 bytes a token
DEEPEST: Final = 8  # nodes that have seen most of the prompt and are looked at


class Loads:
    """Nodes by load; of equal ones, the one that got least so far."""

    def __init__(self, nodes: int) -> None:
        self.load = [0] * nodes
        self._given = [0] * nodes
        self._heap = [(0, 0, node) for node in range(nodes)]  # entries that are out of date are passed over
        heapify(self._heap)

    def least(self) -> int:
        while True:
            load, given, node = self._heap[0]
            if load == self.load[node] and given == self._given[node]:
                return node
            heappop(self._heap)

    def change(self, node: int, amount: int) -> None:
        self._given[node] += max(amount, 0)
        self.load[node] += amount
        heappush(self._heap, (self.load[node], self._given[node], node))


class PrefillChoice:
    """Chooses a prefill node as `prefix_affinity` does."""

    def __init__(self, nodes: int) -> None:
        self._loads = Loads(nodes)
        self._seen: dict[str, dict[int, None]] = {}  # block → nodes that were given it

    def choose(self, demand: Demand) -> int:
        least = self._loads.least()
        best, rank = least, self._loads.load[least] + demand.input_tokens
        for node, blocks in self._deepest(demand.blocks).items():
            load = self._loads.load[node] + demand.input_tokens - blocks * demand.block_tokens
            if load < rank:
                best, rank = node, load
        for block in demand.blocks:
            self._seen.setdefault(block, {})[best] = None
        self._loads.change(best, demand.input_tokens)
        return best

    def done(self, node: int, demand: Demand) -> None:
        self._loads.change(node, -demand.input_tokens)

    def _deepest(self, blocks: Sequence[str]) -> Counter[int]:
        """Return the nodes that have seen most leading blocks, and how many."""
        found: Counter[int] = Counter()
        known = 0
        while known < len(blocks) and blocks[known] in self._seen:
            known += 1
        for depth in range(known, 0, -1):
            for node in reversed(self._seen[blocks[depth - 1]]):  # the latest: its cache still has it
                if len(found) == DEEPEST:
                    return found
                found.setdefault(node, depth)
        return found


class Shape(NamedTuple):
    """How many nodes of each role."""

    prefill: int
    decode: int


class Outcome(NamedTuple):
    """What a simulation gave."""

    records: list[Record]  # by arrival
    duration_s: float
    prefill_busy: float  # share of the time in which a prefill node computes, mean over all
    decode_busy: float
    jobs: list[Job]  # by arrival, one for each record


def simulate(load: Sequence[Demand], calibration: Calibration, shape: Shape) -> Outcome:
    """Run a load, by arrival, over so many nodes. Raises `RunError`: a request is larger than a node's KV pool."""
    prompt = max(one.input_tokens for one in load)
    whole = max(one.input_tokens + one.output_tokens for one in load)
    pools = ("a prompt", prompt, "prefill", calibration.prefill), ("a request", whole, "decode", calibration.decode)
    for what, tokens, role, node in pools:
        if 0 < node.kv_tokens < tokens:
            room = f"a {role} node's KV pool of {node.kv_tokens} tokens"
            raise RunError(f"{what} of {tokens} tokens never fits into {room}")
    return _Simulation(load, calibration, shape).run()


class _Simulation:
    """One run. `_events` is a heap of instant, number, what to do."""

    def __init__(self, load: Sequence[Demand], calibration: Calibration, shape: Shape) -> None:
        self._load = load
        self._calibration = calibration
        self._shape = shape
        self._prefill = [PrefillNode(calibration.prefill) for _ in range(shape.prefill)]
        self._decode = [DecodeNode(calibration.decode) for _ in range(shape.decode)]
        self._turns = [0] * shape.decode  # counts the turns that were planned: only the latest one is taken
        self._choose_prefill = PrefillChoice(shape.prefill)
        self._decode_loads = Loads(shape.decode)
        self._prefill_link_free_at = [0.0] * shape.prefill
        self._decode_link_free_at = [0.0] * shape.decode
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._jobs: list[Job] = []

    def run(self) -> Outcome:
        for demand in self._load:
            self._at(demand.due_s, partial(self._arrive, demand))
        while self._events:
            at_s, _, act = heappop(self._events)
            act(at_s)
        began_s = self._load[0].due_s
        duration_s = max(job.last_at + self._overhead_s(job) for job in self._jobs) - began_s
        return Outcome(
            records=[self._record(index, job) for index, job in enumerate(self._jobs)],
            duration_s=duration_s,
            prefill_busy=sum(node.busy_s for node in self._prefill) / (self._shape.prefill * duration_s),
            decode_busy=sum(node.busy_s for node in self._decode) / (self._shape.decode * duration_s),
            jobs=self._jobs,
        )

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        heappush(self._events, (at_s, next(self._numbers), act))

    def _arrive(self, demand: Demand, now_s: float) -> None:
        decode, prefill = self._decode_loads.least(), self._choose_prefill.choose(demand)
        self._decode_loads.change(decode, demand.input_tokens + SEQUENCE_TOKENS)
        job = Job(demand, prefill, decode)
        self._jobs.append(job)
        self._plan_turn(decode, self._decode[decode].arrive(job, now_s))
        self._prefill[prefill].take(job)
        self._at(now_s, lambda at_s: self._begin_step(prefill, at_s))  # once all who come now are there

    def _begin_step(self, prefill: int, now_s: float) -> None:
        step = self._prefill[prefill].begin(now_s)
        if step is not None:
            for job, _, _ in step.chunks:
                self._decode[job.decode].begun(job)
            self._at(step.ends_s, lambda at_s: self._end_step(prefill, at_s))

    def _end_step(self, prefill: int, now_s: float) -> None:
        step = self._prefill[prefill].end()
        for job, _, kv_tokens in step.chunks:
            job.unsent += kv_tokens
            if job.reserved:
                self._send(job, step.began_s, now_s)
            if job.computed == job.demand.input_tokens:
                self._choose_prefill.done(prefill, job.demand)
        self._begin_step(prefill, now_s)

    def _send(self, job: Job, began_s: float, now_s: float) -> None:
        there_s = self._occupy_links(job, began_s, now_s)
        job.unsent = 0
        if job.computed == job.demand.input_tokens:
            self._at(there_s, lambda at_s: self._transferred(job, at_s))

    def _occupy_links(self, job: Job, began_s: float, ended_s: float) -> float:
        """Send the KV of a step, which was computed from `began_s` to `ended_s`; return when all of it has arrived."""
        link = self._calibration.link
        if not link.token_s or not job.unsent:
            return ended_s
        whole_s = job.unsent * link.token_s
        layer_s = (ended_s - began_s) / link.layers  # nothing leaves before the first layer is there
        links = (self._prefill_link_free_at, job.prefill), (self._decode_link_free_at, job.decode)
        for free_at, node in links:
            free_at[node] = max(free_at[node], began_s + layer_s) + whole_s
        return max(ended_s + whole_s / link.layers, *(free_at[node] for free_at, node in links))

    def _transferred(self, job: Job, now_s: float) -> None:
        self._prefill[job.prefill].release(job)
        self._begin_step(job.prefill, now_s)
        self._plan_turn(job.decode, self._decode[job.decode].ready(job, now_s))

    def _plan_turn(self, decode: int, at_s: float | None) -> None:
        if at_s is None:
            return
        self._turns[decode] += 1
        number = self._turns[decode]
        self._at(at_s, lambda now_s: self._turn(decode, number, now_s))

    def _turn(self, decode: int, number: int, now_s: float) -> None:
        if number != self._turns[decode]:
            return  # another one was planned since
        ended, given_room, ends_s = self._decode[decode].turn(now_s)
        for job in ended:
            self._decode_loads.change(decode, -job.demand.input_tokens - SEQUENCE_TOKENS)
        for job in given_room:
            if job.unsent:
                self._send(job, now_s, now_s)
        self._plan_turn(decode, ends_s)

    def _overhead_s(self, job: Job) -> float:
        known = self._calibration
        more_s = (known.overhead_queued_s if job.behind else 0.0) + (known.overhead_busy_s if job.beside else 0.0)
        return known.overhead_s + more_s

    def _record(self, index: int, job: Job) -> Record:
        due_s, output = job.demand.due_s, job.demand.output_tokens
        if not job.last_at:
            detail = "both nodes' KV pools are full and wait for each other"
            return Record(index=index, started_s=due_s, ended_s=due_s, due_s=due_s, error=TIMEOUT, detail=detail)
        overhead_s = max(self._overhead_s(job), due_s - job.first_at)  # no token comes before its request
        return Record(
            index=index,
            started_s=due_s,
            ended_s=job.last_at + overhead_s,
            due_s=due_s,
            ttft_s=job.first_at - due_s + overhead_s,
            latency_s=job.last_at - due_s + overhead_s,
            input_tokens=job.demand.input_tokens,
            output_tokens=output,
            asked_output_tokens=output,
            status=200,
        )
