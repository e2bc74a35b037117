"""Runs whose pages are opened in a browser: usual ones, and those at the edges."""

import random
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from baton.loadtest.compare.command import compare, comparison_page, tables
from baton.loadtest.measures.record import TIMEOUT, Record
from baton.loadtest.report.html import html_report
from baton.loadtest.result import Legs, Result, StageResult
from tests.unit.loadtest.records import failed, record
from tests.unit.loadtest.results import NODE, result, stage

HOSTILE: Final = "<script>alert(1)</script>"


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
    load = {"loop": "closed", "concurrency": 8}
    told: dict[str, Any] = {"nodes": [NODE, replace(NODE, url="http://d:1")], "legs": legs(done)}
    taken = stage([*done, *wrong], label="8 users", load=load, duration_s=13.0, **told)
    return result(taken, slos_ms={"ttft": 300.0})


def sweep(seed: int = 1, faster: float = 1.0) -> Result:
    """Three rates; the last one is more than the server can do."""
    stages: list[StageResult] = []
    for rate, ttft_s in ((1.0, 0.1), (4.0, 0.15), (16.0, 6.0)):
        done = requests(60, ttft_s=ttft_s / faster, every_s=1 / rate, seed=seed)
        load = {"loop": "open", "rate_per_s": rate}
        ended_s = max(each.ended_s for each in done)
        stages.append(stage(done, label=f"{rate:g} requests/s", load=load, duration_s=ended_s))
    return result(*stages)


def replay() -> Result:
    """A trace: more requests than a timeline has rows, in bursts, some of them waiting here for the cap."""
    bursts = [(5 * burst + at / 40, index) for burst in range(10) for index, at in enumerate(range(40), 40 * burst)]
    done = [
        record(at_s, 0.1 + index / 400, (0.006,) * 12, index=index, due_s=at_s - 0.2, queued_s=0.2)
        for at_s, index in bursts
    ]
    load = {"loop": "open", "concurrency": 32, "trace": "mooncake_conversation_2000"}
    return result(stage(done, label="trace, 400 requests", load=load, duration_s=47.0))


def pages() -> dict[str, str]:
    one, other = sweep(), sweep(2, 1.5)
    verdicts = tables(compare(one, other, resamples=20, seed=0, confidence=0.95))
    outlier = record(1.0, 3000.0, (0.006, 3000.0), index=60)  # it takes 50 minutes; so does one gap
    hostile = stage([*requests(60), outlier], label=HOSTILE, duration_s=6001.0)
    return {
        "closed loop": html_report(closed_loop()),
        "trace replay": html_report(replay()),
        "pareto of two sweeps": comparison_page(one, other, verdicts, "A note."),
        "nothing completed": html_report(result(stage([failed(TIMEOUT), failed(TIMEOUT, 0.5)]), stage([]))),
        "hostile names and an outlier": html_report(
            result(hostile, arguments={"url": HOSTILE, "seed": 0, "model": HOSTILE}, interrupted=True)
        ),
        "sweep": html_report(one),
    }
