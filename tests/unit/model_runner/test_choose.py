import importlib.util

import pytest

from model_runner.choose import WORKERS, UnknownDeviceError, worker_class


@pytest.mark.parametrize("device", sorted(WORKERS))
def test_each_device_has_a_worker_class_in_a_module_that_exists(device: str) -> None:
    """The path is what vLLM imports; the module itself imports the device's libraries."""
    module, _, name = worker_class(device).rpartition(".")
    assert importlib.util.find_spec(module) is not None
    assert name == "Worker"


def test_an_unknown_device_is_named() -> None:
    """The sentence says what there is."""
    with pytest.raises(UnknownDeviceError, match=r"'tpu'.*cpu, cuda, npu"):
        worker_class("tpu")
