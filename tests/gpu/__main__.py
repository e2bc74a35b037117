"""`python -m tests.gpu`: run the scripts, each in a process of its own, and write one JSON file."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.gpu.harness import SCRIPTS, Scale, find_script, judged, run_script

LIMIT_S: Final = 75.0  # of one script: what it may measure is given as less
START_S: Final = 15.0  # of that, for starting a process, importing and allocating
ONE_SCRIPT: Final = "--run"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    made.add_argument(
        "--json", type=Path, default=Path("build/gpu.json"), help="where the results go (default: %(default)s)"
    )
    made.add_argument("--only", default=",".join(SCRIPTS), help="which scripts, e.g. E1,E3 (default: all)")
    made.add_argument("--seconds", type=float, default=540.0, help="for all of them together (default: %(default)g)")
    made.add_argument("--late", action="store_true", help="rehearse on a simulated device, as small as possible")
    made.add_argument(ONE_SCRIPT, choices=SCRIPTS, help=argparse.SUPPRESS)
    return made


def main() -> int:
    """Run what the command line asks for; 0: everything is as expected, or there is no CUDA device."""
    options = parser().parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(SCRIPTS):
        print(f"there is no script {', '.join(sorted(unknown))}; there are {', '.join(SCRIPTS)}", file=sys.stderr)
        return 2
    if options.run:
        options.json.write_text(json.dumps(run_here(options.run, options.seconds, late=options.late)))
        return 0
    if not options.late and not has_cuda():
        print("make test-gpu: torch finds no CUDA device here, so nothing was run.")
        return 0
    return run_all(names, options)


def has_cuda() -> bool:
    """Whether torch is installed and finds a CUDA device."""
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def run_here(name: str, seconds: float, *, late: bool) -> dict[str, Any]:
    if not late:
        from tests.gpu.device import Device

        return run_script(name, Device(), Scale(seconds=seconds))
    from tests.gpu.late import late as simulated

    script = find_script(name)
    with simulated(*getattr(script, "DRIVEN", ()), virtual=getattr(script, "VIRTUAL", True)) as device:
        return run_script(name, device, Scale(full=False, seconds=seconds))


def run_all(names: list[str], options: argparse.Namespace) -> int:
    """Run scripts one after the other; the file is complete after each, whatever becomes of the next."""
    until_s = time.monotonic() + options.seconds
    results: list[dict[str, Any]] = []
    options.json.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        limit_s = min(LIMIT_S, until_s - time.monotonic())
        result = run_apart(name, limit_s, late=options.late) if limit_s > START_S else lost(name, "no time was left")
        results.append(result)
        options.json.write_text(json.dumps({"kit": "tests.gpu", "late": options.late, "results": results}, indent=1))
        missed = f": missed {'; '.join(result['missed'])}" if result["missed"] else ""
        print(
            f"{name:4} {'passed' if result['passed'] else 'FAILED'} {result.get('seconds', 0):6.1f} s{missed}",
            flush=True,
        )
    print(
        f"{sum(result['passed'] for result in results)} of {len(results)} as expected; all figures are in {options.json}"
    )
    return 0 if all(result["passed"] for result in results) else 1


def run_apart(name: str, limit_s: float, *, late: bool) -> dict[str, Any]:
    """Run one script in a process group of its own, and end all of it when its time is over."""
    with TemporaryDirectory(prefix="baton-gpu-") as folder:
        out, log = Path(folder) / "result.json", Path(folder) / "log"
        measured_s = min(45.0, limit_s - START_S)
        argv = [sys.executable, "-m", "tests.gpu", ONE_SCRIPT, name, "--json", str(out), "--seconds", str(measured_s)]
        with log.open("wb") as file:
            child = subprocess.Popen(
                argv + ["--late"] * late, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                status: int | str = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                status = f"ended after {limit_s:.0f} s"
            with suppress(ProcessLookupError):  # children that it left behind, too
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(10)  # a kernel that hangs may keep it
        tail = log.read_text(errors="replace")[-4000:]
        if not out.exists():
            return lost(name, f"no result: {status}", tail)
        result: dict[str, Any] = json.loads(out.read_text())
        return result if result["passed"] else result | {"log": tail}


def lost(name: str, *notes: str) -> dict[str, Any]:
    """Return the result of a script that gave none."""
    try:
        return judged(name, find_script(name).EXPECTED, {}, notes) | {"title": find_script(name).TITLE}
    except ImportError as exc:
        return judged(name, (), {}, [*notes, repr(exc)]) | {"passed": False}


if __name__ == "__main__":
    sys.exit(main())
