"""Arguments → what is asked and when. Reads files, opens no socket."""

import argparse
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from baton.loadtest.errors import UsageError
from baton.loadtest.run.arguments import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, SECONDS
from baton.loadtest.run.loops import Closed, Limits, Load, Open
from baton.loadtest.traffic.arrivals import arrivals
from baton.loadtest.traffic.made_up import Lengths, Making, MultiTurn, RandomPrompts, SharedPrefix, Vocabulary
from baton.loadtest.traffic.prompt_file import PromptFile, read_prompts
from baton.loadtest.traffic.script import Source
from baton.loadtest.traffic.trace_replay import NO_LIMIT, Scale, TraceReplay, read_trace

UNBOUNDED: Final = 1 << 60  # requests of a stage that only time ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stretch of constant load, to be run."""

    label: str
    load: Load
    limits: Limits
    description: dict[str, Any]  # of the load, for the report; equal for runs that may be compared


def source(given: argparse.Namespace) -> Source:
    lengths = Lengths(
        input_tokens=given.input_tokens or INPUT_TOKENS,
        output_tokens=given.max_tokens or OUTPUT_TOKENS,
        spread=given.length_spread,
    )
    low, high = given.vocabulary
    vocabulary = Vocabulary(low=low, high=high, tokens_per_word=given.tokens_per_word)
    making = Making(seed=given.seed, chat=given.endpoint == "chat", lengths=lengths, vocabulary=vocabulary)
    if given.trace:
        return _trace(given, making)
    if given.prompts:
        return read_prompts(given.prompts, chat=making.chat, output_tokens=lengths.output_tokens)
    if given.dataset == "shared-prefix":
        return SharedPrefix(making, given.prefixes, given.prefix_tokens)
    if given.dataset == "multi-turn":
        return MultiTurn(making, given.turns)
    return RandomPrompts(making)


def _trace(given: argparse.Namespace, making: Making) -> TraceReplay:
    try:
        requests = read_trace(given.trace)
    except (OSError, EOFError) as exc:
        raise UsageError(f"cannot read {given.trace}: {getattr(exc, 'strerror', None) or exc}") from exc
    except msgspec.DecodeError as exc:
        raise UsageError(f"{given.trace} is no trace in Mooncake's format: {exc}") from exc
    if not requests:
        raise UsageError(f"{given.trace} has no requests")
    scale = Scale(
        time=given.time_scale or 1.0,
        length=given.length_scale or 1.0,
        max_input_tokens=given.max_input or NO_LIMIT,
        max_output_tokens=given.max_output or NO_LIMIT,
    )
    return TraceReplay(making, sorted(requests, key=lambda request: request.timestamp), scale)


def stages(given: argparse.Namespace, dataset: Source) -> list[Stage]:
    if isinstance(dataset, TraceReplay):
        return [_replay(given, dataset)]
    limits = Limits(requests=_requests(given, dataset), seconds=given.seconds or SECONDS)
    if given.rate is None and given.rates is None:
        users = given.concurrency or 1
        label, closed = f"{users} user{'s' * (users > 1)}", {"loop": "closed", "concurrency": users}
        return [Stage(label=label, load=Closed(concurrency=users), limits=limits, description=closed)]
    return [_paced(given, rate, limits, dataset.turns) for rate in given.rates or [given.rate]]


def _paced(given: argparse.Namespace, rate: float, limits: Limits, turns: int) -> Stage:
    needed = math.ceil(limits.requests / turns)
    scripts = min(needed, math.ceil(rate * limits.seconds)) if given.ramp_to is None else needed
    burstiness = given.burstiness or 1.0
    due = arrivals(scripts, rate, burstiness=burstiness, ramp_to_per_s=given.ramp_to, seed=given.seed)
    ramp = {"ramp_to_per_s": given.ramp_to} if given.ramp_to else {}
    return Stage(
        label=f"{rate:g}/s" + (f" to {given.ramp_to:g}/s" if given.ramp_to else ""),
        load=Open(due_s=due, cap=given.concurrency),
        limits=limits,
        description={
            "loop": "open",
            "rate_per_s": rate,
            "burstiness": "inf" if math.isinf(burstiness) else burstiness,
            "concurrency": given.concurrency,
            **ramp,
        },
    )


def _replay(given: argparse.Namespace, dataset: TraceReplay) -> Stage:
    due = dataset.due_s()[: given.requests]
    return Stage(
        label="trace",
        load=Open(due_s=due, cap=given.concurrency),
        limits=Limits(requests=len(due), seconds=given.seconds or math.inf),
        description={"loop": "trace", "time_scale": dataset.scale.time, "concurrency": given.concurrency},
    )


def _requests(given: argparse.Namespace, dataset: Source) -> int:
    if given.requests:
        return int(given.requests)
    if given.seconds:
        return UNBOUNDED
    return len(dataset.asks) if isinstance(dataset, PromptFile) else REQUESTS


def workload(given: argparse.Namespace, dataset: Source) -> dict[str, Any]:
    """Describe what is asked: runs with equal descriptions may be compared. The seed is not in it."""
    asked: dict[str, Any] = {name: getattr(given, name) for name in ("endpoint", "ignore_eos", "temperature")}
    if isinstance(dataset, TraceReplay):
        scale = dataset.scale
        limits = {"max_input": given.max_input, "max_output": given.max_output, "length_scale": scale.length}
        return {**asked, "dataset": "trace", "digest": _digest(given.trace), **limits}
    if isinstance(dataset, PromptFile):
        return {**asked, "dataset": "prompts", "digest": _digest(given.prompts), "max_tokens": given.max_tokens}
    asked |= {"dataset": given.dataset, "length_spread": given.length_spread}
    asked |= {"input_tokens": given.input_tokens or INPUT_TOKENS, "max_tokens": given.max_tokens or OUTPUT_TOKENS}
    if given.dataset == "shared-prefix":
        asked |= {"prefixes": given.prefixes, "prefix_tokens": given.prefix_tokens}
    if given.dataset == "multi-turn":
        asked["turns"] = given.turns
    return asked


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
