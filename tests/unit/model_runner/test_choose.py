import importlib.util
from pathlib import Path

import pytest

from baton.model_runner.choose import UnknownDeviceError, WorkerRefusedError, refuse_ascend, worker_class


@pytest.mark.parametrize(("device", "default"), [("cpu", "Worker"), ("cuda", "EngineWorker"), ("npu", "EngineWorker")])
def test_each_device_has_worker_classes_and_ours_is_the_default_where_it_has_been_run(
    device: str, default: str
) -> None:
    """The path is what vLLM imports; the module itself imports the device's libraries."""
    module = f"baton.model_runner.{device}"
    assert worker_class(device) == f"{module}.{default}"
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for model_runner, name in (("baton", "Worker"), ("engine", "EngineWorker")):
        assert worker_class(device, model_runner) == f"{module}.{name}"
        assert f"class {name}(" in Path(spec.origin).read_text()


@pytest.mark.parametrize(
    ("settings", "device", "words"),
    [({}, "_310P", "NPUWorker310"), ({"xlite_graph_config": {"enabled": True}}, "A3", "XliteWorker")],
)
def test_what_vllm_ascend_runs_in_another_worker_is_refused(settings: object, device: str, words: str) -> None:
    with pytest.raises(WorkerRefusedError, match=words):
        refuse_ascend(settings, device)
    for plain in (None, {}, {"xlite_graph_config": {"enabled": False}}, {"xlite_graph_config": None}):
        refuse_ascend(plain, "A2")


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(UnknownDeviceError, match=r"'tpu'.*cpu, cuda, npu"):
        worker_class("tpu")
