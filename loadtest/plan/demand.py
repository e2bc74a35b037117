"""What comes when, as the simulator sees it. Taken from the sources of `loadtest run`, so that both mean the same load."""

import argparse
import sys
from dataclasses import dataclass, replace
from typing import Final

from baton.loadtest.errors import UsageError
from baton.loadtest.run import build
from baton.loadtest.run.loops import Open
from baton.loadtest.traffic.made_up import RandomPrompts, SharedPrefix
from baton.loadtest.traffic.recorded import TraceReplay, output_tokens, pieces
from baton.loadtest.traffic.script import Source

MOST_REQUESTS: Final = 20_000  # of a rate for which no end is given: some seconds for each shape that is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """When a request comes, and how many tokens it has."""

    due_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[str, ...] = ()  # names of the prompt's whole blocks; equal ones are equal text up to their end
    block_tokens: int = 1


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the simulated nodes, written by those that have it."""

    demand: Demand
    prefill: int  # the nodes that it was given
    decode: int
    behind: int = 0  # prompts that P had, when this one came
    cached: int = 0  # tokens that P's prefix cache had
    computed: int = 0  # tokens of the prompt that P has
    unsent: int = 0  # tokens whose KV waits for room on D
    begun: bool = False  # P had begun it before D had room for it
    reserved: bool = False  # D has room for it
    ends_at_step: int = 0  # of D
    first_at: float = 0.0
    last_at: float = 0.0
    beside: int = 0  # sequences that D's batch had, when it joined
    context: int = 0  # tokens when it joined D's batch


def demands(given: argparse.Namespace, dataset: Source) -> list[Demand]:
    """Return the requests of an open loop, as they come. Raises `UsageError`: the load is none, or has no lengths."""
    if given.rate and not (given.requests or given.seconds):  # a run's few may be over before a queue has grown
        given = argparse.Namespace(**{**vars(given), "seconds": _span_s(given.rate)})
    stage = build.stages(given, dataset)[0]
    if not isinstance(stage.load, Open):
        raise UsageError("a plan needs an open loop: --trace, or --rate")
    due = [at for at in stage.load.due_s if stage.limits.in_time(at)][: stage.limits.requests]
    if not due:
        raise UsageError(f"no request is due before the {stage.limits.seconds:g} s are over")
    if isinstance(dataset, TraceReplay):
        return [_traced(dataset, index, at) for index, at in enumerate(due)]
    return [_made_up(dataset, index, at) for index, at in enumerate(due)]


def _span_s(rate_per_s: float) -> float:
    span_s = min(build.SECONDS, MOST_REQUESTS / rate_per_s)
    if span_s < build.SECONDS:
        wish = "--seconds or --requests asks for another span"
        print(f"{MOST_REQUESTS} requests are simulated, {span_s:g} s at this rate; {wish}", file=sys.stderr)
    return span_s


def _traced(dataset: TraceReplay, index: int, due_s: float) -> Demand:
    request = dataset.requests[index]
    parts = pieces(request, index, dataset.scale)
    whole = dataset.scale.block_tokens
    return Demand(
        due_s=due_s,
        input_tokens=sum(part.tokens for part in parts),
        output_tokens=output_tokens(request, dataset.scale),
        blocks=tuple(part.block for part in parts if part.tokens == whole),
        block_tokens=whole,
    )


def _made_up(dataset: Source, index: int, due_s: float) -> Demand:
    if isinstance(dataset, RandomPrompts | SharedPrefix):
        tokens, output = dataset.lengths(index)
    else:
        ask = next(dataset.script(index))
        tokens, output = ask.input_tokens, ask.output_tokens
    if not tokens:
        raise UsageError("a plan needs prompts of known length: use random prompts or a trace")
    demand = Demand(due_s=due_s, input_tokens=tokens, output_tokens=output)
    if not isinstance(dataset, SharedPrefix):
        return demand
    return replace(demand, blocks=(f"prefix/{index % dataset.prefixes}",), block_tokens=dataset.prefix_tokens)
