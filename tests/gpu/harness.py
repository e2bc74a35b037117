"""What the scripts share: figures expected before the run, how much to run, and the verdict."""

import importlib
import operator
import platform
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, Final

from tests.gpu.device import Device

SCRIPTS: Final = {
    "E1": "e1_sender",
    "E2": "e2_streams",
    "E3": "e3_mooncake",
    "E4": "e4_visibility",
    "E5": "e5_tokens",
    "E6": "e6_tokens_beside_kv",
    "E7": "e7_overlap",
    "E8": "e8_soak",
    "E9": "e9_watchdog",
    "E10": "e10_digests",
}
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}
_PACKAGES: Final = ("torch", "numpy", "msgspec", "pyzmq", "mooncake-transfer-engine-cuda13")


@dataclass(frozen=True, slots=True)
class Expect:
    """What a figure was expected to be, written down before it was seen, and why."""

    figure: str
    compare: str  # "<=", ">=" or "=="
    value: float
    why: str
    timed: bool = False  # a figure of time: judged only where the device's clock means something
    full: bool = False  # judged only where all of the script runs

    def holds(self, seen: Any) -> bool:
        """Whether what was seen is as expected; a figure that is missing is not."""
        return seen is not None and _COMPARE[self.compare](seen, self.value)


@dataclass(slots=True, kw_only=True)
class Scale:
    """How much to run, and what the script has to say beyond its figures."""

    full: bool = True  # False: a dry run, as small as shows that the script works
    processes: bool = True  # False: what has a process of its own runs in this one, with stand-ins
    seconds: float = 45.0
    notes: list[str] = field(default_factory=list)

    def of(self, full: int, dry: int) -> int:
        """Choose a number by the scale."""
        return full if self.full else dry


def find_script(name: str) -> ModuleType:
    """Import the script called `name`, "E1" to "E10"."""
    return importlib.import_module(f"tests.gpu.{SCRIPTS[name]}")


def run_script(name: str, device: Device, scale: Scale) -> dict[str, Any]:
    """Run one script here and judge it; whatever it raises is a failure with its stack in the notes."""
    script, began_s = find_script(name), time.perf_counter()
    figures: Mapping[str, Any] = {}
    try:
        figures = script.run(device, scale)
    except Exception:  # noqa: BLE001  # the boundary of a script: the others must run
        scale.notes.append(traceback.format_exc(limit=-6))
    return judged(name, script.EXPECTED, figures, scale.notes, timed=device.timed, full=scale.full) | {
        "title": script.TITLE,
        "seconds": round(time.perf_counter() - began_s, 1),
        "versions": versions(device),
    }


def judged(
    name: str,
    expected: Sequence[Expect],
    figures: Mapping[str, Any],
    notes: Sequence[str] = (),
    *,
    timed: bool = True,
    full: bool = True,
) -> dict[str, Any]:
    """Return a script's result as plain data: every figure that was seen, and which expectations it missed."""
    judged_ones = [each for each in expected if (timed or not each.timed) and (full or not each.full)]
    missed = [each.figure for each in judged_ones if not each.holds(figures.get(each.figure))]
    return {
        "name": name,
        "expected": {each.figure: f"{each.compare} {each.value:g}: {each.why}" for each in expected},
        "seen": dict(figures),
        "missed": missed,
        "passed": not missed,
        "notes": list(notes),
    }


def versions(device: Device) -> dict[str, str]:
    """Return what ran: packages, Python, and the device."""
    found = {"python": platform.python_version(), "device": device.describe()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
