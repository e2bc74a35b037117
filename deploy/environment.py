"""The environment of nodes: what must be set before vLLM is imported, which device it drives, and who sees which one."""

from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Literal

from baton.contracts.installed import installed_version
from baton.node.startup.flags import given

COMPILES = ("--compilation-config", "-cc", "--optimization-level", "-O")

QUIET = {
    "GLOG_minloglevel": "2",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
REMOVED = ("VLLM_CPU_KVCACHE_SPACE",)  # whole GiB that would override --kv-cache-memory-bytes

Device = Literal["cpu", "cuda", "npu"]

VISIBLE_DEVICES = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}


def zygote_environment(current: Mapping[str, str], *, offline: bool, vllm_args: Sequence[str] = ()) -> dict[str, str]:
    """Return `current` with what a zygote of vLLM servers on a CPU needs; what the user has set stays.

    `offline`: the model is a folder of this machine, so the hub must not be asked.
    """
    wanted = QUIET | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if not given(vllm_args, *COMPILES):
        wanted["TORCHDYNAMO_DISABLE"] = "1"  # eager: otherwise the first requests trace for seconds
    if offline:
        wanted["HF_HUB_OFFLINE"] = "1"
    return wanted | {name: value for name, value in current.items() if name not in REMOVED}


def installed_device() -> Device:
    """Return the device of the installed profile; `cuda` if there is nothing to tell."""
    if installed_version("vllm-cpu") or "cpu" in installed_version("vllm"):
        return "cpu"
    return "npu" if installed_version("vllm-ascend") else "cuda"


def visible_devices(device: Device, counts: Mapping[str, int], current: str | None) -> dict[str, dict[str, str | None]]:
    """Return the environment that shows each node its own devices, nodes in their order.

    `counts`: node's name → how many devices it uses. `current`: the variable as it is, a comma-separated list; None if
    unset.
    """
    if device == "cpu":
        return {name: {} for name in counts}
    there = map(str, count()) if current is None else iter(current.split(","))
    return {name: {VISIBLE_DEVICES[device]: ",".join(islice(there, each))} for name, each in counts.items()}
