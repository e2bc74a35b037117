"""Which worker class belongs to which device."""

from collections.abc import Mapping
from types import MappingProxyType

WORKERS: Mapping[str, str] = MappingProxyType(
    {
        "cpu": "model_runner.cpu.Worker",
        "cuda": "model_runner.cuda.Worker",
        "npu": "model_runner.npu.Worker",
    }
)


class UnknownDeviceError(ValueError):
    """No worker class is made for the device."""


def detect_device() -> str:
    """Return vLLM's name for the device of this machine."""
    from vllm.platforms import current_platform  # imports torch, and the device's plugin if there is one

    return str(current_platform.device_type)


def worker_class(device: str) -> str:
    """Return the import path of a device's worker class.

    Raises:
        UnknownDeviceError: there is none.
    """
    try:
        return WORKERS[device]
    except KeyError:
        raise UnknownDeviceError(f"no worker class for device {device!r}, only for {', '.join(WORKERS)}") from None
