"""Which worker class belongs to which device."""

from collections.abc import Mapping

DEVICES = ("cpu", "cuda", "npu")  # each is also the name of a module here
OURS, ENGINES = "Worker", "EngineWorker"
BY_DEFAULT = ("cpu",)  # where ours has been run; it needs vLLM's V1 runner, and on a CPU that is the only one


class UnknownDeviceError(ValueError):
    """No worker class is made for the device."""


class WorkerRefusedError(RuntimeError):
    """A worker class cannot do here what its name says; the message says what to use."""


def detect_device() -> str:
    from vllm.platforms import current_platform  # imports torch, and the device's plugin if there is one

    return str(current_platform.device_type)


def worker_class(device: str, model_runner: str = "auto") -> str:
    """Return the import path of a device's worker class; `model_runner`: see `resolve`."""
    if device not in DEVICES:
        raise UnknownDeviceError(f"no worker class for device {device!r}, only for {', '.join(DEVICES)}")
    return f"baton.model_runner.{device}.{OURS if resolve(device, model_runner) == 'baton' else ENGINES}"


def resolve(device: str, model_runner: str) -> str:
    """Return `baton` or `engine`: what `auto` stands for is the one that is proven on the device."""
    if model_runner == "auto":
        return "baton" if device in BY_DEFAULT else "engine"
    return model_runner


def refuse_ascend(additional_config: object, device: str) -> None:
    """Refuse an NPU's family, by vllm-ascend's name, or a configuration for which it runs a worker that Baton's do not derive from."""
    if device == "_310P":
        raise WorkerRefusedError(
            "on a 310P vllm-ascend runs a worker of its own (NPUWorker310), with another layout of the KV cache: Baton has none "
            "for it, use an Atlas A2 or A3"
        )
    xlite = additional_config.get("xlite_graph_config") if isinstance(additional_config, Mapping) else None
    if isinstance(xlite, Mapping) and xlite.get("enabled"):
        raise WorkerRefusedError(
            "xlite graphs run in a worker of vllm-ascend's own (XliteWorker), and call no layer's hook: leave xlite_graph_config out "
            "of --additional-config"
        )
