"""`python -m benchmarks.plan_check`: calibrate a pair of nodes in CPU quotas, then compare shapes with their simulation. Root only.

A machine's speed drifts, by more than what is asked of the planner where others share it. So the pair that is calibrated stands
beside the shape, a round of its measurements comes before each run, and what the host disturbed is measured again.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from baton.contracts.http import DISAGGREGATED
from baton.deploy.embedded_model import bench_model
from baton.deploy.forkserver import ForkServer
from baton.loadtest.errors import RunError
from baton.loadtest.measures.record import Record
from baton.loadtest.plan import calibrate_command
from baton.loadtest.plan.calibrate_command import Calibrating, calibrating
from baton.loadtest.plan.calibration import Calibration
from baton.loadtest.plan.demand import Demand, demands
from baton.loadtest.plan.simulate import Shape, simulate
from baton.loadtest.report.text import table_markdown, table_text
from baton.loadtest.result import StageResult
from baton.loadtest.run import arguments as run_arguments
from baton.loadtest.run import build
from baton.loadtest.run import command as run_command
from baton.loadtest.run.environment import environment, now
from benchmarks import harness
from benchmarks.overlap.processes import processes
from benchmarks.plan_check.comparison import Comparison, Means, Noise, as_plain, compare, comparison_table
from benchmarks.plan_check.rig import BATCHED_TOKENS, PERIOD_US, Rig, Running
from benchmarks.usage import OtherCpu, Quiet

SHAPES: Final = (Shape(1, 1), Shape(2, 1), Shape(1, 2))
TIMEOUT_S: Final = 60.0
_RATE: Final = 1.0  # stands in where only lengths matter


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m benchmarks.plan_check", description=__doc__)
    add = made.add_argument
    add("--runs", type=int, default=5, help="of each shape")
    add("--seconds", type=float, default=20.0, help="of each run")
    add("--utilisation", type=float, default=0.65, help="of the prefill node at 1:1, which sets the rate")
    add("--input-tokens", type=int, default=400)
    add("--max-tokens", type=int, default=24)
    add("--length-spread", type=float, default=0.6)
    add("--seed", type=int, default=7)
    add("--cores", type=float, default=0.4, help="of each node")
    add("--max-stolen-cores", type=float, default=0.1, help="that the host takes; more disturbs a run or a round")
    add("--tries", type=int, default=4, help="of each run and round, before a disturbed one counts")
    add("--json", type=Path, metavar="FILE")
    add("--logs", type=Path, metavar="FOLDER", help="keep the processes' logs")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; return the exit status: 1 as well if a shape is off by more than is allowed."""
    given = parser().parse_args(argv)

    def take() -> int:
        with harness.workplace("plan", logs=given.logs) as (forkserver, folder):
            bench_model.ensure(harness.MODEL)
            found, calibrations, about = asyncio.run(check(given, forkserver, folder))
        print(table_markdown(comparison_table(found)))
        if given.json:
            given.json.write_text(json.dumps(as_plain(found, calibrations, about), indent=1) + "\n")
        return 0 if all(one.right for one in found) else 1

    return harness.run("plan_check", take)


async def check(
    given: argparse.Namespace, forkserver: ForkServer, folder: Path
) -> tuple[list[Comparison], list[Calibration], dict[str, Any]]:
    found: list[Comparison] = []
    calibrations: list[Calibration] = []
    rate = 0.0
    async with (
        processes(forkserver, folder, timeout_s=TIMEOUT_S) as calibrating_processes,
        processes(forkserver, folder, timeout_s=TIMEOUT_S) as shape_processes,
    ):
        pair = Rig(calibrating_processes, folder, cores=given.cores, prefix="calibrated-")
        rig = Rig(shape_processes, folder, cores=given.cores)
        try:
            calibrated = await pair.start(Shape(1, 1))
            for shape in SHAPES:
                running = await rig.start(shape)
                async with calibrating(_calibration(given, calibrated)) as calibrator:
                    quiet = Quiet(OtherCpu(os.getpid()), given.max_stolen_cores, given.tries)
                    await quiet.measure(calibrator.measure, calibrator.forget)
                    rate = rate or rate_per_s(given, await calibrator.found())
                    runs, noise = await _runs(given, running, rate, calibrator, quiet)
                    calibrations.append(await calibrator.found())
                shares = ", ".join(f"{share:.0%}" for share in rig.throttled())
                said = f"quotas were used up in {shares} of the periods"
                print(f"{shape.prefill}:{shape.decode}: {said}", file=sys.stderr)
                found.append(compare(shape, simulate(load(given, rate), calibrations[-1], shape), runs, noise))
                print(table_text(comparison_table(found[-1:])), flush=True)
        finally:
            rig.stop()
            pair.stop()
    sent = f"{rate:.2f} requests/s for {given.seconds:g} s, {given.input_tokens} + {given.max_tokens} tokens"
    about = {
        "when": now(),
        **environment(),
        "load": f"{sent} × (1 ± {given.length_spread:g}), Poisson, seed {given.seed}, {given.runs} runs",
        "cores of each node": given.cores,
        "period of the quotas (µs)": PERIOD_US,
    }
    return found, calibrations, about


def _calibration(given: argparse.Namespace, running: Running) -> argparse.Namespace:
    """Return how a pair is measured: with lengths and loads that are not those of the runs."""
    argv = ["--url", running.proxy, "--out", os.devnull, "--seed", str(given.seed + 1)]
    argv += ["--max-num-batched-tokens", str(BATCHED_TOKENS), "--prompt-tokens", "96,300,768"]
    argv += ["--samples", "1", "--users", "1,4,9", "--answer-tokens", "48"]
    argv += ["--prefill-metrics", running.prefill[0], "--decode-metrics", running.decode[0]]
    return calibrate_command.parser().parse_args(argv)


async def _runs(
    given: argparse.Namespace, running: Running, rate: float, calibrator: Calibrating, quiet: Quiet
) -> tuple[list[list[Record]], Noise]:
    meter, other_cores = OtherCpu(os.getpid()), 0.0
    taken: list[StageResult] = []
    for number in range(given.runs):
        if number:
            await quiet.measure(calibrator.measure, calibrator.forget)
        meter.restart()
        taken.append(await quiet.measure(lambda: _run(given, running, rate)))
        other_cores = max(other_cores, meter.other_cores())
        means = Means.of(taken[-1].records)
        print(f"run {number + 1}: TTFT {1e3 * means.ttft_s:.1f} ms, TPOT {1e3 * means.tpot_s:.1f} ms", file=sys.stderr)
    late_s = max(one.client.lag_p99_s for one in taken)
    noise = Noise(other_cores, late_s, quiet.stolen_cores, quiet.repeated)
    return [one.records for one in taken], noise


async def _run(given: argparse.Namespace, running: Running, rate: float) -> StageResult:
    """Send the load once; every request must have gone over both nodes."""
    warm_up = 4 * (len(running.prefill) + len(running.decode))
    argv = ["--url", running.proxy, *load_argv(given, rate), "--warmup", str(warm_up)]
    asked = run_arguments.parse(argv, {})
    result = await run_command.run(asked, build.source(asked))
    if result.interrupted:  # `loadtest run` takes signals for itself
        raise KeyboardInterrupt
    (stage,) = result.stages
    wrong = [record for record in stage.records if not record.ok or record.path != DISAGGREGATED]
    if wrong:
        raise RunError(f"{len(wrong)} requests failed or were not disaggregated: {_words(wrong[0])}")
    return stage


def _words(record: Record) -> str:
    return f"{record.error or record.path} {record.detail}".strip()


def load(given: argparse.Namespace, rate: float) -> list[Demand]:
    asked = run_arguments.parse(["--url", "http://simulated", *load_argv(given, rate)], {})
    return demands(asked, build.source(asked))


def load_argv(given: argparse.Namespace, rate: float) -> list[str]:
    requests = max(2, round(rate * given.seconds))
    lengths = ["--input-tokens", str(given.input_tokens), "--max-tokens", str(given.max_tokens)]
    spread = ["--length-spread", str(given.length_spread), "--seed", str(given.seed)]
    return ["--rate", f"{rate:.4f}", "--requests", str(requests), *lengths, *spread]


def rate_per_s(given: argparse.Namespace, calibration: Calibration) -> float:
    """Return the rate at which one prefill node would be as busy as asked for."""
    prompts_s = fmean(calibration.prefill.prompt_time_s(one.input_tokens) for one in load(given, _RATE))
    return float(given.utilisation / prompts_s)


if __name__ == "__main__":
    sys.exit(main())
