"""E9: a kernel that hangs is ended by the watchdog; a device assert ends everything that waits, without it.

Either breaks the process that it happens in, so each has one of its own: `python -m tests.gpu.e9_watchdog hang`.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final

import torch

from baton.model_runner.tokens.handles import DeviceLostError
from baton.model_runner.watchdog import EXIT_OVERDUE, Overdue, Watchdog, end_process
from tests.gpu import rank
from tests.gpu.device import Device
from tests.gpu.e2_streams import NoHooks
from tests.gpu.e5_tokens import transfers
from tests.gpu.harness import Expect, Scale
from tests.gpu.model import Model, shape

TITLE: Final = "a kernel that hangs, and a device assert, against the watchdog"
VIRTUAL: Final = False  # the watchdog looks by the machine's clock
BOUND_S: Final = 3.0
SPIN_S: Final = 60.0
LAYERS: Final = 8
HERE_S: Final = 10.0  # how long a dry run waits for its watchdog
_BEGUN: Final = "begun"
EXPECTED: Final = (
    Expect("hang: ended by the watchdog", "==", 1, "its thread needs no device"),
    Expect("hang: call and stacks are told", "==", 1, "the log names the call; the stacks follow"),
    Expect("hang: seconds beyond the bound", "<=", 2.0, "a tick, 0.5 s of grace, the driver's clean-up", timed=True),
    Expect("assert: prompts that committed", "==", 0, "an event that fails voids what waits for it"),
    Expect("assert: tokens' reader told", "==", 1, "DeviceLostError instead of tokens"),
    Expect(
        "assert: seconds until all was told", "<=", 2.0, "every wait of the process returns with the error", timed=True
    ),
)

End = Callable[[Overdue, float], None]


def hang(device: Device, bound_s: float, end: End = end_process) -> None:
    """Wait for a kernel that takes a minute, in a watched call."""
    watchdog = Watchdog(bound_s, end)
    watchdog.start()
    with device.on(device.stream()):
        device.spin(SPIN_S)
        done = device.event()
        done.record()
        print(_BEGUN, flush=True)
        with watchdog.call("execute_model"):
            done.synchronize()


def fail(device: Device) -> dict[str, Any]:
    """Let a kernel fail in the middle of a pass; return what the sender and the tokens' reader made of it."""
    model = Model(device, shape(not device.late, LAYERS), tokens=32 if device.late else 1024)
    streams, told = (device.stream(), device.stream()), 0
    ids, nowhere = (torch.tensor([number], device=device.memory) for number in (0, 99))
    ids[ids].tolist()
    model.run(model.pieces(), NoHooks())  # first calls load libraries
    device.synchronize()
    with (
        transfers(device, 1) as transfer,
        rank.PushingRank(device, model, streams, "event", 25e9) as pushing,
        device.on(streams[0]),
    ):
        pushing.begin()
        began_s = device.now()
        try:
            device.launch(lambda: ids[nowhere])
            model.run(model.pieces(), pushing.sync)
        except Exception:  # noqa: BLE001  # a launch behind the fault may say so already; then vLLM's step fails
            pushing.void("the forward pass failed")
        try:
            transfer.submit({"ids": ids}).result()
        except (DeviceLostError, RuntimeError):  # the launch of the copy may say so already
            told = 1
        outcome, _ = pushing.finish()
    return {"told": told, "committed": int("commit" in outcome.marks), "seconds": device.now() - began_s}


def run(device: Device, scale: Scale) -> Mapping[str, Any]:
    """Run both, each where it can do no harm."""
    hung, failed = _in_processes(device, scale) if scale.processes else _here(device)
    return {
        "hang: ended by the watchdog": hung["ended"],
        "hang: call and stacks are told": hung["told"],
        "hang: seconds beyond the bound": round(hung["seconds"], 2),
        "assert: prompts that committed": failed.get("committed"),
        "assert: tokens' reader told": failed.get("told"),
        "assert: seconds until all was told": round(failed.get("seconds", 1e9), 3),
    }


def _in_processes(device: Device, scale: Scale) -> tuple[dict[str, Any], dict[str, Any]]:
    mode = ["--late"] if device.late else []
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.e9_watchdog", "hang", *mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    began_s = time.monotonic()
    try:
        _, log = child.communicate(timeout=BOUND_S + 15)
    except subprocess.TimeoutExpired:
        child.kill()
        _, log = child.communicate()
    hung = {
        "ended": int(child.returncode == EXIT_OVERDUE),
        "told": int("execute_model has not returned" in log and "in hang" in log),
        "seconds": time.monotonic() - began_s - BOUND_S,
    }
    scale.notes.append(f"hang: exit status {child.returncode}; log ends: {log[-600:]}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.e9_watchdog", "assert", *mode],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    scale.notes.append(f"assert: exit status {done.returncode}; log ends: {done.stderr[-600:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return hung, json.loads(lines[-1]) if lines else {}


def _here(device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    """In a dry run, on simulated devices: the watchdog's end is a note, and the device that hangs is lost by it."""
    told: list[Overdue] = []
    began_s, bound_s = time.monotonic(), 0.05
    with _simulated() as hanging:

        def end(overdue: Overdue, _: float) -> None:
            told.append(overdue)
            hanging.device.lose()

        def wait() -> None:
            with suppress(RuntimeError):  # the device is lost
                hang(hanging, bound_s, end)

        thread = threading.Thread(target=wait, name="hangs", daemon=True)
        thread.start()
        thread.join(HERE_S)
        hanging.device.lose()
        thread.join(HERE_S)
    named = [overdue.call == ("execute_model", thread.ident) for overdue in told]
    hung = {"ended": len(told), "told": int(named == [True]), "seconds": time.monotonic() - began_s - bound_s}
    return hung, fail(device)


def main(case: str, *, simulated: bool) -> None:
    with ExitStack() as stack:
        device = Device() if not simulated else stack.enter_context(_simulated())
        if case == "hang":
            hang(device, BOUND_S)
        else:
            print(json.dumps(fail(device)), flush=True)


def _simulated() -> Any:
    from tests.gpu.late import late

    return late(virtual=False)


if __name__ == "__main__":
    main(sys.argv[1], simulated="--late" in sys.argv)
