"""The command line of `loadtest run`, and what it means: what is asked and when. Reads files, opens no socket."""

import argparse
import hashlib
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.loadtest import words
from baton.loadtest.errors import UsageError
from baton.loadtest.measures.serving import parse_slos
from baton.loadtest.run.loops import UNBOUNDED, Closed, Limits, Load, Open
from baton.loadtest.traffic.arrivals import arrivals
from baton.loadtest.traffic.made_up import Lengths, Making, MultiTurn, RandomPrompts, SharedPrefix, Vocabulary
from baton.loadtest.traffic.recorded import NO_LIMIT, PromptFile, Scale, TraceReplay, read_prompts, read_trace
from baton.loadtest.traffic.script import Source

DATASETS: Final = ("random", "shared-prefix", "multi-turn")
REQUESTS: Final = 100  # unless the command line, or a file's length, says otherwise
SECONDS: Final = 600.0  # likewise; a trace takes as long as it takes
INPUT_TOKENS: Final = 512
OUTPUT_TOKENS: Final = 128


def parser() -> words.Parser:
    made = words.parser("run", "Load an OpenAI server and report what came of it.")
    add = made.add_argument_group("server").add_argument
    words.add_server(add)
    add("--endpoint", choices=("completions", "chat"), default="completions")
    add("--header", action="append", type=words.header, default=[], metavar="NAME: VALUE", help="sent with requests")
    add("--extra-body", default="{}", metavar="JSON", help="further fields of each request")
    add("--no-ignore-eos", dest="ignore_eos", action="store_false", help="let answers end early")
    add("--temperature", type=words.not_negative, default=0.0)
    add("--timeout", type=words.above_0, default=300.0, metavar="S", help="for each request, to its end (%(default)s)")
    add_load(made)
    add_dataset(made)
    add_trace(made)
    add = made.add_argument_group("measuring and reporting").add_argument
    add("--warmup", type=words.count_or_none, default=0, metavar="N", help="requests that do not count")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="SLOs: ttft, tpot, e2el")
    add("--metrics-url", nargs="+", default=[], metavar="URL", help="nodes whose /metrics are read before and after")
    add("--secret-file", type=Path, metavar="FILE", help="the nodes' secret: they are also asked for legs and pushes")
    add("--out", type=Path, metavar="DIR", help="write result.json, requests.csv, report.md, report.html")
    return made


def add_load(
    made: words.Parser, *, requests: str = f"{REQUESTS}; a file's or a trace's length", seed: int | None = None
) -> None:
    """`requests`: how many there are where none of the options says so. `seed`: the one that is taken; None: a new one."""
    add = made.add_argument_group("load: closed loop, unless a rate or a trace is given").add_argument
    add("--concurrency", type=words.count, metavar="N", help="closed loop: users (1); open loop: in flight at most")
    add("--rate", type=words.above_0, metavar="R", help="open loop: requests (conversations) per second")
    add("--rates", type=words.numbers, metavar="R,R,…", help="a sweep: one stage for each rate")
    add("--burstiness", type=words.above_0_or_inf, metavar="B", help="1: Poisson (default); below: burstier; inf: even")
    add("--ramp-to", type=words.above_0, metavar="R", help="change the rate linearly up to the last request")
    add("--requests", type=words.count, metavar="N", help=f"per stage ({requests})")
    seconds = f"per stage; none is begun later ({SECONDS:g}; trace: no limit)"
    add("--seconds", type=words.above_0, metavar="S", help=seconds)
    usual = words.drawn_seed() if seed is None else seed
    add("--seed", type=int, default=usual, help=f"of the prompts' text ({'drawn' if seed is None else seed})")


def add_dataset(made: words.Parser) -> None:
    group = made.add_argument_group("what is asked")
    one = group.add_mutually_exclusive_group()
    one.add_argument("--dataset", choices=DATASETS, default="random")
    one.add_argument("--prompts", type=Path, metavar="FILE", help="JSONL of prompts, or of OpenAI bodies")
    one.add_argument("--trace", type=Path, metavar="FILE", help="replay a trace in Mooncake's format")
    add = group.add_argument
    add("--input-tokens", type=words.count, metavar="N", help=f"of a prompt, suffix or turn ({INPUT_TOKENS})")
    add("--max-tokens", type=words.count, metavar="N", help=f"of an answer ({OUTPUT_TOKENS})")
    add("--length-spread", type=words.share, default=0.0, metavar="X", help="draw both from length × (1 ± X)")
    add("--prefixes", type=words.count, default=8, metavar="N", help="shared-prefix: how many (%(default)s)")
    add("--prefix-tokens", type=words.count, default=512, metavar="N", help="shared-prefix: length (%(default)s)")
    add("--turns", type=words.count, default=4, metavar="N", help="multi-turn: requests per conversation (%(default)s)")
    add("--vocabulary", type=words.token_range, default=(10, 1000), metavar="LOW:HIGH", help="token ids used (10:1000)")
    add("--tokens-per-word", type=words.above_0, default=1.0, metavar="X", help="the tokenizer's, for prompts of words")


def add_trace(made: words.Parser) -> None:
    add = made.add_argument_group("trace").add_argument
    add("--time-scale", type=words.above_0, metavar="X", help="multiply times by this: 0.5 is twice as fast")
    add("--length-scale", type=words.above_0, metavar="X", help="multiply lengths by this")
    add("--max-input", type=words.count, metavar="N", help="cut prompts to this many tokens")
    add("--max-output", type=words.count, metavar="N", help="ask for no longer answers")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; `slos_ms` and `more` are ready for use. Raises `UsageError`: it is wrong."""
    arguments = parser().parse_args(argv)
    arguments.slos_ms = parse_slos(arguments.goodput)
    arguments.more = _json_object(arguments.extra_body)
    for wrong in conflicts(arguments):
        raise UsageError(wrong)
    if arguments.secret_file and not arguments.metrics_url:
        raise UsageError("--secret-file needs --metrics-url, the nodes to be asked")
    return arguments


def conflicts(given: argparse.Namespace) -> list[str]:
    paced = given.rate is not None or given.rates is not None
    traced = [
        name for name in ("time_scale", "length_scale", "max_input", "max_output") if getattr(given, name) is not None
    ]
    rules = (
        (given.rate is not None and given.rates is not None, "--rate and --rates exclude each other"),
        (given.trace and paced, "--trace has arrival times of its own: --rate and --rates do not go with it"),
        (given.trace and given.max_tokens, "--trace has lengths of its own: use --max-output"),
        (given.trace and given.input_tokens, "--trace has lengths of its own: use --max-input or --length-scale"),
        (traced and not given.trace, f"--{traced[0].replace('_', '-') if traced else ''} needs --trace"),
        (given.burstiness is not None and not paced, "--burstiness needs --rate or --rates"),
        (given.ramp_to is not None and given.rate is None, "--ramp-to needs --rate"),
        (given.ramp_to and given.requests is None, "--ramp-to needs --requests, at whose end it is reached"),
        (given.prompts and given.input_tokens, "--prompts has prompts of its own: --input-tokens does not go with it"),
    )
    return [sentence for broken, sentence in rules if broken]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)  # as it is encoded again: without NaN and halves of characters
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"--extra-body is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise UsageError("--extra-body is no JSON object")
    return value


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
    except (OSError, EOFError, zlib.error) as exc:
        raise UsageError(f"cannot read {given.trace}: {getattr(exc, 'strerror', None) or exc}") from exc
    except DECODE_ERRORS as exc:
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
    turns = dataset.turns if isinstance(dataset, MultiTurn) else 1
    return [_paced(given, rate, limits, turns) for rate in given.rates or [given.rate]]


def _paced(given: argparse.Namespace, rate: float, limits: Limits, turns: int) -> Stage:
    needed = math.ceil(limits.requests / turns)
    scripts = min(needed, math.ceil(rate * limits.seconds)) if given.ramp_to is None else needed
    burstiness = given.burstiness or 1.0
    # Not by the run's seed, as lengths are not: `compare` would judge luck.
    due = arrivals(scripts, rate, burstiness=burstiness, ramp_to_per_s=given.ramp_to)
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
