"""`loadtest calibrate`: asks a live pair, one prefill and one decode node behind a proxy, so that its speeds can be computed."""

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import uvloop

from baton.loadtest import words
from baton.loadtest.client.exchange import Exchange
from baton.loadtest.client.fetch import fetch, first_model
from baton.loadtest.client.http import Client, parse_address
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.measures.record import Record
from baton.loadtest.plan import calibration, rows
from baton.loadtest.plan.calibration import Calibration, Decode, Link, Prefill
from baton.loadtest.plan.rows import PrefillCell
from baton.loadtest.report.tables import Table
from baton.loadtest.report.text import table_text
from baton.loadtest.run.environment import environment, now
from baton.loadtest.run.loops import Closed, Limits, Load, Loop, Open
from baton.loadtest.run.nodes import check_counts, samples
from baton.loadtest.traffic.arrivals import arrivals
from baton.loadtest.traffic.made_up import Lengths, Making, RandomPrompts, Vocabulary
from baton.loadtest.traffic.script import Form

PROMPT_TOKENS: Final = (128, 512, 1024, 2048)
USERS: Final = (1, 2, 4, 8)
_POOR: Final = 0.15  # a mean error of a fit that makes predictions doubtful
_WARM_UP: Final = 3  # requests
_MANY: Final = 8  # users whose prompts share steps
_SHORT: Final = 2  # lengths of which there are such


def parser() -> words.Parser:
    about = "Measure how fast one prefill and one decode node are, behind a proxy and otherwise idle."
    made = words.parser("calibrate", about)
    add = made.add_argument
    words.add_server(add, " of the proxy")
    add("--out", type=Path, required=True, metavar="FILE", help="where the calibration is written")
    add("--header", action="append", type=words.header, default=[], metavar="NAME: VALUE")
    add("--timeout", type=words.above_0, default=300.0, metavar="S", help="for each request (%(default)s)")
    add("--prompt-tokens", type=_counts, default=PROMPT_TOKENS, metavar="N,N,…", help="lengths of prompts")
    add("--answer-tokens", type=words.count, default=64, metavar="N", help="of the decode runs (%(default)s)")
    add("--users", type=_counts, default=USERS, metavar="N,N,…", help="likewise: how many at a time")
    add("--samples", type=words.count, default=7, metavar="N", help="requests for each figure (%(default)s)")
    add("--rounds", type=words.count, default=1, metavar="N", help="measure all so often: speeds drift (%(default)s)")
    add("--vocabulary", type=words.token_range, default=(10, 1000), metavar="LOW:HIGH")
    add("--seed", type=int, default=words.drawn_seed(), help="of the prompts (drawn)")
    limits = made.add_argument_group("the nodes' limits, as they were started").add_argument
    limits("--max-num-batched-tokens", type=words.count, default=calibration.DEFAULT_BATCHED_TOKENS, metavar="N")
    limits("--prefill-max-num-seqs", type=words.count, default=calibration.DEFAULT_SEQUENCES, metavar="N")
    limits("--decode-max-num-seqs", type=words.count, default=calibration.DEFAULT_SEQUENCES, metavar="N")
    limits("--prefill-metrics", metavar="URL", help="the prefill node: its KV pool and KV bytes per token are read")
    limits("--decode-metrics", metavar="URL", help="the decode node: its KV pool is read")
    limits("--link-gbit", type=words.above_0, metavar="X", help="bandwidth for KV of each node; else never the limit")
    limits("--layers", type=words.count, default=1, metavar="N", help="of the model: KV leaves layer by layer")
    return made


def main(argv: Sequence[str]) -> int:
    given = parser().parse_args(argv)
    if given.link_gbit and not given.prefill_metrics:
        raise UsageError("--link-gbit needs --prefill-metrics, which says how much KV a token has")
    if len(given.prompt_tokens) < 3:
        raise UsageError("--prompt-tokens needs three lengths or more: a line through two fits always")
    found: Calibration = uvloop.run(calibrate(given))
    calibration.write_calibration(found, given.out)
    print(table_text(calibration_table(found)))
    for name, fit in found.fits.items():
        if fit.mean_error > _POOR:
            off = f"{fit.mean_error:.0%} off on average"
            print(f"The fit of {name} is poor ({off}): the node is not as the model has it.")
    print(f"\nwritten to {given.out}")
    return 0


async def calibrate(given: argparse.Namespace) -> Calibration:
    """Measure everything as often as is asked. Raises `RunError`: an answer failed, or what was measured does not suffice."""
    address = parse_address(given.url)
    headers = dict(given.header) | ({"Authorization": f"Bearer {given.api_key}"} if given.api_key else {})
    model = given.model or await first_model(address, headers)
    client = Client(address, headers, given.timeout)
    try:
        pair = Pair(Exchange(client, Form(model=model, chat=False)), given)
        before = await node_state(given.prefill_metrics)
        prefill, decode = await pair.prefill(), await pair.decode()
        steps, lengths = rows.calibrate(prefill, decode, await _known(given, before)), pair.mixed_lengths
        rate_per_s = rows.mixed_rate_per_s(steps, lengths.input_tokens, lengths.output_tokens)
        mixed = [await pair.mixed(rate_per_s)]
        for _ in range(given.rounds - 1):
            prefill += await pair.prefill()
            decode += await pair.decode()
            mixed.append(await pair.mixed(rate_per_s))
        steps = rows.calibrate(prefill, decode, await _known(given, before))
    finally:
        client.close()
    about = {
        "when": now(),
        "model": model,
        **environment(),
        "prompt_tokens": list(given.prompt_tokens),
        "seed": given.seed,
    }
    return msgspec.structs.replace(rows.with_overheads(steps, mixed), about=about)


class NodeState(NamedTuple):
    """What a node's `/metrics` say."""

    kv_tokens: int  # size of the KV pool; 0: unknown
    pushed_bytes: float
    prompt_tokens: float


class Pair:
    """A pair that is asked one thing after the other. No prompt comes twice, so no cache helps."""

    def __init__(self, exchange: Exchange, given: argparse.Namespace) -> None:
        """`given`: what is measured, and how often, in the words of the command line."""
        self._exchange = exchange
        self._given = given
        self._runs = 0

    @property
    def mixed_lengths(self) -> Lengths:
        """Those of the open loop: from the shortest prompt to the longest one, and short answers, so that many meet."""
        short, long = min(self._given.prompt_tokens), max(self._given.prompt_tokens)
        answer = max(self._given.answer_tokens // 6, 3)
        return Lengths(input_tokens=(short + long) // 2, output_tokens=answer, spread=(long - short) / (long + short))

    async def prefill(self) -> list[PrefillCell]:
        lengths, samples = sorted(self._given.prompt_tokens), self._given.samples
        await self._run(max(lengths), 4, users=1, requests=_WARM_UP)
        cells = []
        for tokens in lengths:
            alone = await self._run(tokens, 1, users=1, requests=samples)
            in_line = {2: await self._run(tokens, 1, users=2, requests=2 * samples + 3)}
            if tokens in lengths[:_SHORT]:
                in_line[_MANY] = await self._run(tokens, 1, users=_MANY, requests=_MANY * max(3, samples - 2))
            cells.append(PrefillCell(tokens, alone, in_line))
        return cells

    async def decode(self) -> list[list[Record]]:
        given = self._given
        short, long = min(given.prompt_tokens), max(given.prompt_tokens)
        whole, part = given.answer_tokens, max(given.answer_tokens // 4, 3)
        each = max(2, math.ceil(given.samples / 3))  # with two or more, some arrive while others are decoded
        return [
            await self._run(tokens, answer, users=users, requests=each * users)
            for tokens, answer in ((short, whole), (short, part), (long, whole))
            for users in given.users
        ]

    async def mixed(self, rate_per_s: float) -> list[Record]:
        requests, lengths = 8 * self._given.samples, self.mixed_lengths
        about = f"about {lengths.input_tokens} + {lengths.output_tokens} tokens"
        print(f"{requests} requests of {about}, {rate_per_s:.2f} per second", file=sys.stderr)
        due_s = arrivals(requests, rate_per_s, seed=self._runs)
        return await self._load(Open(due_s=due_s), lengths, requests)

    async def _run(self, tokens: int, answer: int, *, users: int, requests: int) -> list[Record]:
        print(f"{requests} requests of {tokens} + {answer} tokens, {users} at a time", file=sys.stderr)
        return await self._load(Closed(concurrency=users), Lengths(input_tokens=tokens, output_tokens=answer), requests)

    async def _load(self, load: Load, lengths: Lengths, requests: int) -> list[Record]:
        self._runs += 1
        low, high = self._given.vocabulary
        seed, vocabulary = self._given.seed * 1000 + self._runs, Vocabulary(low=low, high=high)
        making = Making(seed=seed, chat=False, lengths=lengths, vocabulary=vocabulary)
        loop = Loop(self._exchange, RandomPrompts(making), Limits(requests=requests, seconds=float("inf")))
        taken = await loop.run(load, asyncio.Event())
        for record in taken.records:
            if not record.ok:
                asked = f"{record.input_tokens} + {record.asked_output_tokens}"
                raise RunError(f"a request of {asked} tokens failed: {record.error} ({record.detail})")
        return taken.records


async def node_state(url: str | None) -> NodeState:
    """Look at a node, if its address is known. Raises `RunError`: it does not answer, or not as a vLLM server does."""
    if not url:
        return NodeState(0, 0.0, 0.0)
    address = parse_address(url.removesuffix("/metrics"))
    text = await fetch(address, "/metrics", {})
    try:
        return parse_state(text.decode())
    except (ValueError, KeyError) as exc:
        raise RunError(f"{url} has no metrics of a vLLM server: {exc}") from exc


def parse_state(text: str) -> NodeState:
    kv_tokens, sums = 0, {"baton_pushed_bytes_total": 0.0, "vllm:prompt_tokens_total": 0.0}
    for sample in samples(text):
        if sample.name in sums:
            sums[sample.name] += sample.value
        elif sample.name == "vllm:cache_config_info":
            kv_tokens = int(sample.labels["num_gpu_blocks"]) * int(sample.labels["block_size"])
    check_counts((kv_tokens, *sums.values()))
    return NodeState(kv_tokens, *sums.values())


async def _known(given: argparse.Namespace, before: NodeState) -> Calibration:
    """Return a calibration with what is not measured, its times 0; `before`: the prefill node as it was."""
    after, decode = await node_state(given.prefill_metrics), await node_state(given.decode_metrics)
    tokens = after.prompt_tokens - before.prompt_tokens
    return Calibration(
        prefill=Prefill(
            step_s=0.0,
            token_s=0.0,
            max_num_batched_tokens=given.max_num_batched_tokens,
            max_num_seqs=given.prefill_max_num_seqs,
            kv_tokens=after.kv_tokens,
        ),
        decode=Decode(step_s=0.0, sequence_s=0.0, max_num_seqs=given.decode_max_num_seqs, kv_tokens=decode.kv_tokens),
        link=Link(
            gbit_s=given.link_gbit or 0.0,
            kv_bytes_per_token=(after.pushed_bytes - before.pushed_bytes) / tokens if tokens else 0.0,
            layers=given.layers,
        ),
    )


def _counts(text: str) -> list[int]:
    return sorted({words.count(part) for part in text.split(",")})


def calibration_table(found: Calibration) -> Table:
    prefill, decode = found.prefill, found.decode
    lines = [
        ("prefill step", f"{prefill.step_s * 1e3:.3f} ms"),
        ("… per prompt", f"{prefill.prompt_s * 1e3:.3f} ms"),
        ("… per token", f"{prefill.token_s * 1e6:.3f} µs"),
        ("… per token and 1,000 tokens of context", f"{prefill.token_context_s * 1e9:.3f} µs"),
        ("decode step", f"{decode.step_s * 1e3:.3f} ms"),
        ("… per sequence", f"{decode.sequence_s * 1e3:.3f} ms"),
        ("… with more than one", f"{decode.several_s * 1e3:.3f} ms"),
        ("… per 1,000 tokens of context", f"{decode.context_token_s * 1e6:.3f} ms"),
        ("… per arrival", f"{decode.arrival_s * 1e3:.3f} ms"),
        ("overhead of a first token", f"{found.overhead_s * 1e3:.3f} ms"),
        ("… with others on its prefill node", f"{found.overhead_queued_s * 1e3:.3f} ms"),
        ("… with others on its decode node", f"{found.overhead_busy_s * 1e3:.3f} ms"),
    ]
    for name, fit in found.fits.items():
        errors = f"mean error {fit.mean_error:.1%}, worst {fit.worst_error:.1%}"
        lines.append((f"fit of {name}", f"{fit.rows} rows, R² {fit.r_squared:.3f}, {errors}"))
    return Table("Calibration", ("", ""), lines)
