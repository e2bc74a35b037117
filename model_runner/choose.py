"""Which worker class belongs to which device."""

from collections.abc import Mapping
from types import MappingProxyType

MODULES: Mapping[str, str] = MappingProxyType(
    {"cpu": "model_runner.cpu", "cuda": "model_runner.cuda", "npu": "model_runner.npu"}
)
OURS, ENGINES = "Worker", "EngineWorker"
NOT_BY_DEFAULT = ("npu",)  # nobody has run ours there, and waiting for an event can hang before CANN 8.5


class UnknownDeviceError(ValueError):
    """No worker class is made for the device."""


def detect_device() -> str:
    """Return vLLM's name for the device of this machine."""
    from vllm.platforms import current_platform  # imports torch, and the device's plugin if there is one

    return str(current_platform.device_type)


def worker_class(device: str, model_runner: str = "auto") -> str:
    """Return the import path of a device's worker class.

    Args:
        device: As vLLM names it.
        model_runner: `baton`, `engine`, or `auto` for the one that is proven on the device.

    Raises:
        UnknownDeviceError: there is none.
    """
    if device not in MODULES:
        raise UnknownDeviceError(f"no worker class for device {device!r}, only for {', '.join(MODULES)}")
    engines = model_runner == "engine" or (model_runner == "auto" and device in NOT_BY_DEFAULT)
    return f"{MODULES[device]}.{ENGINES if engines else OURS}"
