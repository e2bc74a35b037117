"""What a plan shows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from baton.loadtest.measures.percentile import Spread
from baton.loadtest.measures.serving import Serving, serving
from baton.loadtest.plan.calibration import Calibration
from baton.loadtest.plan.simulate import Outcome, Shape
from baton.loadtest.report.tables import Table

_LATENCIES = ("TTFT", "TPOT")


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


def predict(shape: Shape, outcome: Outcome, slos_ms: Mapping[str, float]) -> Prediction:
    served = serving(outcome.records, outcome.duration_s, slos_ms)
    return Prediction(shape, served, outcome.prefill_busy, outcome.decode_busy)


def predictions_table(title: str, found: Sequence[Prediction], chosen: Shape | None = None, note: str = "") -> Table:
    columns = [f"{name} {which} (ms)" for name in _LATENCIES for which in ("mean", "P50", "P99")]
    headings = ("P:D", *columns, "goodput share", "req/s", "P busy", "D busy")
    return Table(title, headings, [_row(one, chosen) for one in found], note)


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


def calibration_table(found: Calibration) -> Table:
    prefill, decode = found.prefill, found.decode
    rows = [
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
        rows.append((f"fit of {name}", f"{fit.rows} rows, R² {fit.r_squared:.3f}, {errors}"))
    return Table("Calibration", ("", ""), rows)
