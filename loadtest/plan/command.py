"""`loadtest plan`, from the arguments to the exit status."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from baton.loadtest import files, words
from baton.loadtest.errors import RunError, UsageError
from baton.loadtest.measures.percentile import Spread
from baton.loadtest.measures.serving import Serving, is_good, parse_slos, serving
from baton.loadtest.plan.calibration import Calibration, read_calibration
from baton.loadtest.plan.demand import Demand, demands
from baton.loadtest.plan.simulate import Shape, simulate
from baton.loadtest.report.tables import Table
from baton.loadtest.report.text import table_text
from baton.loadtest.run import build

SCHEMA_VERSION: Final = 1
TARGET: Final = 0.9
MOST_NODES: Final = 4096
STRIDES: Final = 32  # a walk takes steps of this part of the nodes; the end is exact again
Share = Callable[[Shape], float]  # of requests that kept every promise


def parser() -> words.Parser:
    made = words.parser("plan", "Say how many prefill and decode nodes a load needs, by simulation.")
    made.set_defaults(endpoint="completions")
    add = made.add_argument
    add("calibration", type=Path, metavar="CALIBRATION", help="what `loadtest calibrate` wrote, or a person")
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="SLOs: ttft, tpot, e2el")
    target = "share of requests that must keep every SLO (%(default)s)"
    add("--target", type=words.above_0_to_1, default=TARGET, metavar="X", help=target)
    add("--nodes", type=_shapes, metavar="P:D,…", help="predict these, and recommend nothing")
    add("--prefill-cost", type=words.above_0, default=1.0, metavar="X", help="of a node (%(default)s)")
    add("--decode-cost", type=words.above_0, default=1.0, metavar="X", help="likewise (%(default)s)")
    add("--max-nodes", type=words.count, default=MOST_NODES, metavar="N", help="of each kind (%(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the figures there, too")
    build.add_load(made, requests="as many as come in the time; a trace's length", seed=0)
    build.add_dataset(made)
    build.add_trace(made)
    return made


def main(argv: Sequence[str]) -> int:
    given = parser().parse_args(argv)
    slos_ms = parse_slos(given.goodput)
    for wrong in [*build.conflicts(given), *_conflicts(given)]:
        raise UsageError(wrong)
    calibration = read_calibration(given.calibration)
    load = demands(given, build.source(given))
    chosen, shapes = (None, given.nodes) if given.nodes else _recommend(given, load, calibration, slos_ms)
    found = []
    for shape in shapes:
        outcome = simulate(load, calibration, shape)
        served = serving(outcome.records, outcome.duration_s, slos_ms)
        found.append(Prediction(shape, served, outcome.prefill_busy, outcome.decode_busy))
    print("\n\n".join(map(table_text, _tables(given, load, found, chosen))))
    if given.json:
        _write(given.json, found, chosen, given.target)
    return 0


def _recommend(
    given: argparse.Namespace, load: Sequence[Demand], calibration: Calibration, slos_ms: Mapping[str, float]
) -> tuple[Shape, list[Shape]]:
    @cache  # a search asks for some shapes twice
    def share(shape: Shape) -> float:
        records = simulate(load, calibration, shape).records
        return sum(record.ok and is_good(record, slos_ms) for record in records) / len(records)

    most = min(given.max_nodes, len(load))  # a node for each request: more change nothing
    prices = Prices(given.prefill_cost, given.decode_cost)
    chosen = cheapest(share, target=given.target, most=most, prices=prices)
    return chosen, neighbours(chosen, most)


class Prices(NamedTuple):
    """What a node costs."""

    prefill: float = 1.0
    decode: float = 1.0

    def of(self, shape: Shape) -> float:
        return self.prefill * shape.prefill + self.decode * shape.decode


EQUAL: Final = Prices()


def cheapest(share: Share, *, target: float, most: int, prices: Prices = EQUAL) -> Shape:
    """Return the cheapest shape, at most `most` nodes a side, that keeps `target`. Raises `RunError`: there is none.

    decode
      │  x              x: the fewest decode nodes for so many prefill nodes
      │  x x            A staircase, since more on one side never needs more on the other. Its ends are found with plenty
      │      x          on the other side; from one end it is walked to the other, unless no cheaper pair can follow.
      │        x x x
      └──────────────── prefill
    """

    def enough(prefill: int, decode: int) -> bool:
        return share(Shape(prefill, decode)) >= target

    if not enough(most, most):
        kept = share(Shape(most, most))
        raise RunError(f"even {most} prefill and {most} decode nodes keep the SLOs of {kept:.1%} of the requests only")
    prefill = _least(lambda n: enough(n, most), 1, most)
    least_decode = _least(lambda n: enough(most, n), 1, most)
    decode = _least(partial(enough, prefill), least_decode, most)
    best = Shape(prefill, decode)
    stride = max(1, prefill // STRIDES)
    while decode > least_decode and prefill < most:
        prefill = min(prefill + stride, most)
        if prices.of(Shape(prefill, least_decode)) >= prices.of(best):
            break
        decode = _least(partial(enough, prefill), least_decode, decode)
        best = min(best, Shape(prefill, decode), key=prices.of)
    fewer = _least(lambda n: enough(n, best.decode), max(1, best.prefill - stride), best.prefill)
    return Shape(fewer, best.decode)


def _least(enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number from `low` to `high` that is enough, given that `high` is; looks at the low end first."""
    step = 1
    while low < high:
        at = min(low + step - 1, (low + high) // 2)
        if enough(at):
            high = at
        else:
            low, step = at + 1, step * 2
    return low


def neighbours(shape: Shape, most: int) -> list[Shape]:
    by_prefill, by_decode = max(1, shape.prefill // 10), max(1, shape.decode // 10)
    around = [
        Shape(prefill, decode)
        for prefill in (shape.prefill - by_prefill, shape.prefill, shape.prefill + by_prefill)
        for decode in (shape.decode - by_decode, shape.decode, shape.decode + by_decode)
    ]
    return [one for one in around if min(one) >= 1 and max(one) <= most]


class Prediction(NamedTuple):
    """Figures of one shape."""

    shape: Shape
    served: Serving
    prefill_busy: float
    decode_busy: float

    @property
    def share(self) -> float | None:
        """Of the requests, those that kept every SLO; None: there was none."""
        served = self.served
        return None if served.good is None else served.good / (served.completed + served.failed)


def _tables(
    given: argparse.Namespace, load: Sequence[Demand], found: Sequence[Prediction], chosen: Shape | None
) -> list[Table]:
    span_s = load[-1].due_s - load[0].due_s
    asked = [
        ("requests", f"{len(load)} in {span_s:.1f} s"),
        ("prompt tokens, mean", f"{sum(one.input_tokens for one in load) / len(load):.1f}"),
        ("answer tokens, mean", f"{sum(one.output_tokens for one in load) / len(load):.1f}"),
        ("SLOs (ms)", " ".join(given.goodput) or "none"),
    ]
    note = ""
    if chosen:
        nodes = f"{chosen.prefill} prefill and {chosen.decode} decode nodes"
        note = f"◄ {nodes}: the cheapest that keep every SLO of at least {given.target:.1%} of the requests."
    columns = [f"{name} {which} (ms)" for name in ("TTFT", "TPOT") for which in ("mean", "P50", "P99")]
    headings = ("P:D", *columns, "goodput share", "req/s", "P busy", "D busy")
    return [
        Table("Load", ("", ""), asked),
        Table("Predicted", headings, [_row(one, chosen) for one in found], note),
    ]


def _row(found: Prediction, chosen: Shape | None) -> tuple[str, ...]:
    shape, served = found.shape, found.served
    times = [f"{value * 1000:.1f}" for spread in (served.ttft, served.tpot) for value in _shown(spread)]
    return (
        f"{shape.prefill}:{shape.decode}" + (" ◄" if shape == chosen else ""),
        *times,
        "–" if found.share is None else f"{found.share:.1%}",
        f"{served.requests_per_s:.2f}",
        f"{found.prefill_busy:.0%}",
        f"{found.decode_busy:.0%}",
    )


def _shown(values: Spread) -> tuple[float, float, float]:
    return values.mean, values.median, values.p99


def _write(file: Path, found: Sequence[Prediction], chosen: Shape | None, target: float) -> None:
    plain = {
        "schema_version": SCHEMA_VERSION,
        "target": target,
        "recommended": chosen and {"prefill": chosen.prefill, "decode": chosen.decode},
        "predictions": [as_plain(one) for one in found],
    }
    files.write(file, json.dumps(plain, indent=1) + "\n")


def as_plain(found: Prediction) -> dict[str, Any]:
    named = {
        f"{name}_{which}_s": value
        for name, spread in (("ttft", found.served.ttft), ("tpot", found.served.tpot))
        for which, value in zip(("mean", "median", "p99"), _shown(spread), strict=True)
    }
    return {
        "prefill": found.shape.prefill,
        "decode": found.shape.decode,
        **named,
        "goodput_share": found.share,
        "requests_per_s": found.served.requests_per_s,
        "prefill_busy": found.prefill_busy,
        "decode_busy": found.decode_busy,
    }


def _conflicts(given: argparse.Namespace) -> list[str]:
    rules = (
        (given.rates is not None, "--rates is a sweep: plan one --rate at a time"),
        (given.concurrency is not None, "--concurrency is not simulated: a plan's load is an open loop"),
        (not given.trace and given.rate is None, "a plan needs a load: --trace, or --rate"),
        (not given.nodes and not given.goodput, "say what is promised with --goodput, or predict with --nodes"),
    )
    return [sentence for broken, sentence in rules if broken]


def _shapes(text: str) -> list[Shape]:
    found = []
    for part in text.split(","):
        prefill, _, decode = part.partition(":")
        try:
            found.append(Shape(words.count(prefill), words.count(decode)))
        except argparse.ArgumentTypeError as exc:
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form P:D") from exc
    return found
