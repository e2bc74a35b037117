import importlib.util
from pathlib import Path

import pytest

from model_runner.choose import MODULES, UnknownDeviceError, worker_class


@pytest.mark.parametrize("model_runner", ["baton", "engine"])
@pytest.mark.parametrize("device", sorted(MODULES))
def test_each_device_has_worker_classes_in_a_module_that_exists(device: str, model_runner: str) -> None:
    """The path is what vLLM imports; the module itself imports the device's libraries."""
    module, _, name = worker_class(device, model_runner).rpartition(".")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    assert f"class {name}(" in Path(spec.origin).read_text()


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", "model_runner.cpu.Worker"),
        ("cuda", "model_runner.cuda.Worker"),
        ("npu", "model_runner.npu.EngineWorker"),
    ],
)
def test_our_runner_is_the_default_where_it_has_been_run(device: str, expected: str) -> None:
    """On an NPU the engine's own is."""
    assert worker_class(device) == expected
    assert worker_class(device, "engine") == expected.rpartition(".")[0] + ".EngineWorker"


def test_an_unknown_device_is_named() -> None:
    """The sentence says what there is."""
    with pytest.raises(UnknownDeviceError, match=r"'tpu'.*cpu, cuda, npu"):
        worker_class("tpu")
