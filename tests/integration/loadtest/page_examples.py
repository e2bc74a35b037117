"""Runs whose pages are opened in a browser: usual ones, and those at the edges."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from baton.loadtest.compare.command import compare, comparison_page, tables
from baton.loadtest.measures.record import TIMEOUT, Record
from baton.loadtest.report.html import html_report
from baton.loadtest.result import HistogramMean, Legs, NodeFigures, Result, StageResult
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import result, stage

HOSTILE: Final = "<script>alert(1)</script>"
NODES: Final = [
    NodeFigures(
        url=f"http://10.0.0.{number}:8{number}00",
        histograms={
            "ttft_s": HistogramMean(120, 0.18),
            "ttit_s": HistogramMean(2800, 0.0072),
            "exposed_transfer_s": HistogramMean(120, 0.0061),
            "hidden_share": HistogramMean(97, 0.91),
        },
        transfers={outcome: 120},
    )
    for number, outcome in ((1, "committed"), (2, "loaded"))
]


def requests(count: int, *, ttft_s: float = 0.2, every_s: float = 0.1, seed: int = 1, **more: Any) -> list[Record]:
    """Return requests whose latencies spread as they do: most near the usual one, some far above it."""
    rng, made = random.Random(seed), []
    for index in range(count):
        gaps = tuple(0.006 * rng.lognormvariate(0, 0.3) for _ in range(20))
        ttft = ttft_s * rng.lognormvariate(0, 0.4)
        made.append(record(every_s * index, ttft, gaps, index=index, transfer_id=f"t{index}", input_tokens=512, **more))
    return made


def legs(records: Sequence[Record]) -> list[Legs]:
    """Return what two nodes would tell of them."""
    told = []
    for each in records:
        sent, ttft = each.started_s, each.ttft_s or 0.0
        at = [sent + ttft * share for share in (0.05, 0.08, 0.12, 0.4, 0.88, 0.9, 0.93)]
        spans = {"allocation": (at[0], at[1]), "waiting for KV": (at[1], at[5]), "commit to first step": (at[5], at[6])}
        spans |= {"prefill": (at[2], at[4]), "pushes": (at[3], at[5]), "exposed push": (at[4], at[5])}
        told.append(Legs(transfer_id=each.transfer_id, spans=spans))
    return told


def closed_loop() -> Result:
    """Eight users, two nodes whose metrics and legs were read, some requests that failed."""
    done = requests(120, path="disaggregated")
    wrong = [failed(TIMEOUT, 0.1 * at, index=120 + at, detail="no complete answer in time") for at in (30, 60)]
    return result(
        stage(
            [*done, *wrong],
            label="8 users",
            load={"loop": "closed", "concurrency": 8},
            duration_s=13.0,
            nodes=NODES,
            legs=legs(done),
        ),
        slos_ms={"ttft": 300.0},
    )


def sweep(seed: int = 1, faster: float = 1.0) -> Result:
    """Five rates; the last one is more than the server can do."""
    stages: list[StageResult] = []
    for rate, ttft_s in ((1.0, 0.1), (2.0, 0.11), (4.0, 0.15), (8.0, 0.4), (16.0, 6.0)):
        done = requests(60, ttft_s=ttft_s / faster, every_s=1 / rate, seed=seed)
        duration_s = max(each.ended_s for each in done)
        load = {"loop": "open", "rate_per_s": rate}
        stages.append(stage(done, label=f"{rate:g} requests/s", load=load, duration_s=duration_s))
    return result(*stages)


def replay() -> Result:
    """A trace: more requests than a timeline has rows, in bursts, some of them waiting here for the cap."""
    rng, done = random.Random(3), []
    for index in range(400):
        started_s = 5 * (index // 40) + rng.random()
        gaps = (0.006,) * 12
        done.append(record(started_s, 0.1 + rng.random(), gaps, index=index, due_s=started_s - 0.2, queued_s=0.2))
    load = {"loop": "open", "concurrency": 32, "trace": "mooncake_conversation_2000"}
    return result(stage(done, label="trace, 400 requests", load=load, duration_s=47.0))


def pages() -> dict[str, str]:
    one, other = sweep(), sweep(2, 1.5)
    verdicts = tables(compare(one, other, resamples=20, seed=0, confidence=0.95))
    outlier = record(1.0, 3000.0, (0.006, 3000.0), index=60)  # it takes 50 minutes; so does one gap
    hostile = result(stage(requests(5), label=HOSTILE), arguments={"url": HOSTILE, "seed": 0, "model": HOSTILE})
    return {
        "closed loop": html_report(closed_loop()),
        "sweep": html_report(one),
        "trace replay": html_report(replay()),
        "pareto of two sweeps": comparison_page(one, other, verdicts, "A note."),
        "nothing completed": html_report(result(stage([failed(TIMEOUT), failed(TIMEOUT, 0.5)]))),
        "no request at all": html_report(result(stage([]), interrupted=True)),
        "one outlier": html_report(result(stage([*requests(60), outlier], duration_s=6001.0))),
        "hostile names": html_report(hostile),
    }


def write(folder: Path) -> dict[str, Path]:
    files = {}
    for name, text in pages().items():
        files[name] = folder / f"{name.replace(' ', '-')}.html"
        files[name].write_text(text)
    return files
