"""Measured requests → equations. Pure.

alone      TTFT of one request at a time   = P's steps + exposed transfer + D's first step + overhead
in line    time between two first tokens   = P's steps, of which several users' prompts share some
decode     TPOT of a request               = D's step with what was in it on average
decode     TTFT less what steps explain    = what first tokens wait for other answers on D
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

import msgspec

from loadtest.errors import RunError
from loadtest.measures.record import Record
from loadtest.plan.calibration import Calibration, Decode, Fit, Link, Prefill
from loadtest.plan.decode import step_s
from loadtest.plan.fit import Row, fit

PREFILL: Final = ("the step", "the prompt", "the token", "the context", "the overhead")
DECODE: Final = ("the step", "the sequence", "the second sequence", "the context", "the arrival")
BUSY: Final = 0.55  # of the TTFT of one request alone; two users who never meet on P have a first token every 0.5


class PrefillCell(NamedTuple):
    """Requests of one prompt length that ask for one token each."""

    tokens: int
    alone: Sequence[Record]
    in_line: Mapping[int, Sequence[Record]]  # by users, two or more


class Known(NamedTuple):
    """What is not fitted."""

    prefill: Prefill  # its limits
    decode: Decode  # likewise
    link: Link


def calibrate(prefill: Sequence[PrefillCell], decode: Sequence[Sequence[Record]], known: Known) -> Calibration:
    """Fit everything.

    Raises:
        RunError: what was measured does not suffice.
    """
    by_decode = fit(decode_rows(decode), DECODE, "decode")
    each_step_s, sequence_s, several_s, context_token_s, arrival_s = by_decode.coefficients
    speed = Decode(
        step_s=each_step_s,
        sequence_s=sequence_s,
        several_s=several_s,
        context_token_s=context_token_s,
        arrival_s=arrival_s,
        max_num_seqs=known.decode.max_num_seqs,
        kv_tokens=known.decode.kv_tokens,
    )
    by_prefill = fit(prefill_rows(prefill, speed, known), PREFILL, "prefill")
    step_s, prompt_s, token_s, token_context_s, overhead_s = by_prefill.coefficients
    limits = known.prefill
    fits: dict[str, Fit] = {"prefill": by_prefill.quality, "decode": by_decode.quality}
    found = Calibration(
        prefill=Prefill(
            step_s=step_s,
            prompt_s=prompt_s,
            token_s=token_s,
            token_context_s=token_context_s,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            kv_tokens=limits.kv_tokens,
        ),
        decode=speed,
        link=known.link,
        overhead_s=overhead_s,
        fits=fits,
    )
    return msgspec.structs.replace(found, overhead_busy_s=overhead_busy_s(decode, found))


def overhead_busy_s(runs: Sequence[Sequence[Record]], found: Calibration) -> float:
    """Return by how much first tokens came later than steps explain where D had other sequences.

    Handing out a step's tokens takes time that a single request does not show, and a busy node does it beside the next step.
    Only requests count that had the prefill node to themselves: of the others nobody knows how long they waited there.
    """
    late_s = []
    for records in runs:
        spans = [_Span.of(record) for record in records if record.ok]
        for span in spans:
            others = sum(one.began_s < span.began_s < one.ended_s for one in spans)
            if others and not any(one is not span and _meet_on_prefill(one, span) for one in spans):
                late_s.append((span.record.ttft_s or 0.0) - _first_token_s(span.record, others, found))
    return max(fmean(late_s), 0.0) if late_s else 0.0


def _meet_on_prefill(one: "_Span", other: "_Span") -> bool:
    return one.record.started_s < other.began_s and other.record.started_s < one.began_s


def _first_token_s(record: Record, beside: int, found: Calibration) -> float:
    """Return what steps explain of a TTFT: P's, half of the one that D is in, and D's next one."""
    tokens, speed, decode = record.input_tokens, found.prefill, found.decode
    steps = math.ceil(tokens / speed.max_num_batched_tokens)
    prefill_s = steps * speed.step_s + speed.prompt_s + speed.token_s * tokens
    prefill_s += speed.token_context_s * tokens * tokens / 2
    waited_s = step_s(decode, beside, tokens * beside) / 2
    own_s = step_s(decode, beside + 1, tokens * (beside + 1))
    return prefill_s + exposed_s(tokens / steps, found.link) + waited_s + own_s + found.overhead_s


def prefill_rows(cells: Sequence[PrefillCell], speed: Decode, known: Known) -> list[Row]:
    """Return the equations for P's steps and the overhead.

    Users in line come in two groups: while one is computed, in one step if it fits, the other one's prompts arrive. So of
    `users` prompts there are two steps, unless a step cannot hold so much.

    Raises:
        RunError: at no length did users in line keep the prefill node busy.
    """
    rows, busy, batched = [], 0, known.prefill.max_num_batched_tokens
    for tokens, alone, in_line in cells:
        steps = math.ceil(tokens / batched)
        rest = (1.0, float(tokens), tokens * tokens / 2)
        ttft_s = fmean(record.ttft_s for record in alone if record.ttft_s is not None)
        first_step_s = step_s(speed, 1, tokens)
        rest_s = max(ttft_s - first_step_s - exposed_s(tokens / steps, known.link), ttft_s / 100)
        rows.append(Row((float(steps), *rest, 1.0), rest_s))
        for users, records in in_line.items():
            between_s = between_first_tokens_s(records, users)
            if between_s * users / 2 > BUSY * ttft_s:
                rows.append(Row((max(2 / users, tokens / batched), *rest, 0.0), between_s))
                busy += 1
    if not busy:
        raise RunError(
            "several users never kept the prefill node busy, so its share of a first token is unknown: use longer prompts"
        )
    return rows


def exposed_s(tokens: float, link: Link) -> float:
    """Return what of a step's transfer comes after the step, where computing takes longer than sending."""
    return tokens * link.kv_bytes_per_token * 8 / (link.gbit_s * 1e9) / link.layers if link.gbit_s else 0.0


def between_first_tokens_s(records: Sequence[Record], users: int) -> float:
    """Return the mean time between two first tokens, over as many whole rounds of all users as there are but the first.

    Raises:
        RunError: there are too few.
    """
    at = sorted(record.started_s + record.ttft_s for record in records if record.ttft_s is not None)
    span = (len(at) - 1) // users * users - users
    if span < users:
        raise RunError(f"prefill: too few answers to {users} users: ask more often (--samples)")
    return (at[-1] - at[-1 - span]) / span


def decode_rows(runs: Sequence[Sequence[Record]]) -> list[Row]:
    """Return an equation for each request with three tokens or more; those of one run were on the node together."""
    rows = []
    for records in runs:
        spans = [_Span.of(record) for record in records if record.ok and record.tpot_s]
        rows += [_row(span, spans) for span in spans if span.record.output_tokens > 2]
    return rows


class _Span(NamedTuple):
    """When a request was decoded."""

    began_s: float
    ended_s: float
    record: Record

    @classmethod
    def of(cls, record: Record) -> "_Span":
        began_s = record.started_s + (record.ttft_s or 0.0)
        return cls(began_s, record.started_s + (record.latency_s or 0.0), record)


def _row(span: _Span, spans: Sequence[_Span]) -> Row:
    """Look around in each of its gaps: so every step counts once, and a slow one not more.

    A gap is a step. Whoever got a token at its end, the first one included, was in it; arrivals at the client scatter, so
    the end is taken a little later for those who begin, and earlier for those who end.
    """
    gaps = span.record.itls_s or (span.ended_s - span.began_s,)
    sequences = several = context = 0.0
    at = span.began_s
    for gap in gaps:
        here = [one for one in spans if one is span or one.began_s - gap * 5 / 4 < at < one.ended_s - gap / 2]
        sequences += len(here) / len(gaps)
        several += (len(here) > 1) / len(gaps)
        context += sum(one.record.input_tokens + one.record.output_tokens / 2 for one in here) / len(gaps)
        at += gap
    arrivals = sum(span.began_s < other.record.started_s < span.ended_s for other in spans)
    made = span.record.output_tokens - 1
    return Row((1.0, sequences, several, context, arrivals / made), (span.ended_s - span.began_s) / made)
