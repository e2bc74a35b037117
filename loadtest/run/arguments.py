"""The command line of `loadtest run`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from baton.loadtest import words
from baton.loadtest.errors import UsageError
from baton.loadtest.measures.serving import parse_slos

DATASETS: Final = ("random", "shared-prefix", "multi-turn")
REQUESTS: Final = 100  # unless the command line, or a file's length, says otherwise
SECONDS: Final = 600.0  # likewise; a trace takes as long as it takes
INPUT_TOKENS: Final = 512
OUTPUT_TOKENS: Final = 128


def parser() -> words.Parser:
    made = words.parser("run", "Load an OpenAI server and report what came of it.")
    _server(made)
    add_load(made)
    add_dataset(made)
    add_trace(made)
    add = made.add_argument_group("measuring and reporting").add_argument
    add("--warmup", type=words.count_or_none, default=0, metavar="N", help="requests that do not count")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="SLOs: ttft, tpot, e2el")
    add("--metrics-url", nargs="+", default=[], metavar="URL", help="nodes whose /metrics are read before and after")
    trace = "the nodes' secret: they are also asked for legs and pushes"
    add("--secret-file", type=Path, metavar="FILE", help=trace)
    add("--out", type=Path, metavar="DIR", help="write result.json, requests.csv, report.md, report.html")
    return made


def _server(made: words.Parser) -> None:
    add = made.add_argument_group("server").add_argument
    words.add_server(add)
    add("--endpoint", choices=("completions", "chat"), default="completions")
    sent = "sent with each request"
    add("--header", action="append", type=words.header, default=[], metavar="NAME: VALUE", help=sent)
    add("--extra-body", default="{}", metavar="JSON", help="further fields of each request")
    add("--no-ignore-eos", dest="ignore_eos", action="store_false", help="let answers end early")
    add("--temperature", type=words.not_negative, default=0.0)
    add("--timeout", type=words.above_0, default=300.0, metavar="S", help="for each request, to its end (%(default)s)")


def add_load(made: words.Parser) -> None:
    add = made.add_argument_group("load: closed loop, unless a rate or a trace is given").add_argument
    users = "closed loop: users (1); open loop: requests in flight at most"
    add("--concurrency", type=words.count, metavar="N", help=users)
    add("--rate", type=words.above_0, metavar="R", help="open loop: requests (conversations) per second")
    add("--rates", type=words.numbers, metavar="R,R,…", help="a sweep: one stage for each rate")
    add("--burstiness", type=words.above_0_or_inf, metavar="B", help="1: Poisson (default); below: burstier; inf: even")
    add("--ramp-to", type=words.above_0, metavar="R", help="change the rate linearly up to the last request")
    add("--requests", type=words.count, metavar="N", help=f"per stage ({REQUESTS}; a file's or a trace's length)")
    seconds = f"per stage; none is begun later ({SECONDS:g}; trace: no limit)"
    add("--seconds", type=words.above_0, metavar="S", help=seconds)
    add("--seed", type=int, default=0, help="of prompts and arrivals (%(default)s)")


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
    turns = "multi-turn: requests of a conversation (%(default)s)"
    add("--turns", type=words.count, default=4, metavar="N", help=turns)
    vocabulary = "token ids in use (10:1000)"
    add("--vocabulary", type=words.token_range, default=(10, 1000), metavar="LOW:HIGH", help=vocabulary)
    per_word = "of the tokenizer, for prompts of words"
    add("--tokens-per-word", type=words.above_0, default=1.0, metavar="X", help=per_word)


def add_trace(made: words.Parser) -> None:
    add = made.add_argument_group("trace").add_argument
    add("--time-scale", type=words.above_0, metavar="X", help="multiply times by this: 0.5 is twice as fast")
    add("--length-scale", type=words.above_0, metavar="X", help="multiply lengths by this")
    add("--max-input", type=words.count, metavar="N", help="cut prompts to this many tokens")
    add("--max-output", type=words.count, metavar="N", help="ask for no longer answers")


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    """Read the command line; `slos_ms`, `more` and `api_key` are ready for use. Raises `UsageError`: it is wrong."""
    arguments = parser().parse_args(argv)
    arguments.slos_ms = parse_slos(arguments.goodput)
    arguments.more = _json_object(arguments.extra_body)
    arguments.api_key = key(arguments.api_key, environ)
    for wrong in conflicts(arguments):
        raise UsageError(wrong)
    if arguments.secret_file and not arguments.metrics_url:
        raise UsageError("--secret-file needs --metrics-url, the nodes to be asked")
    return arguments


def key(given: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the API key of the command line, or of the environment. Raises `UsageError`: no header can hold it."""
    found = (given or environ.get("OPENAI_API_KEY") or "").strip()
    if not words.sendable(found):
        raise UsageError("the API key has letters that no key has")
    return found or None


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
        value = json.loads(text)
    except ValueError as exc:
        raise UsageError(f"--extra-body is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise UsageError("--extra-body is no JSON object")
    return value
