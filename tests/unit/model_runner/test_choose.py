import importlib.util
from pathlib import Path

import pytest

from baton.model_runner.choose import MODULES, UnknownDeviceError, WorkerRefusedError, refuse_ascend, worker_class


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
        ("cpu", "baton.model_runner.cpu.Worker"),
        ("cuda", "baton.model_runner.cuda.EngineWorker"),
        ("npu", "baton.model_runner.npu.EngineWorker"),
    ],
)
def test_our_runner_is_the_default_where_it_has_been_run(device: str, expected: str) -> None:
    """On an accelerator the engine's own is."""
    assert worker_class(device) == expected
    assert worker_class(device, "engine") == expected.rpartition(".")[0] + ".EngineWorker"
    assert worker_class(device, "baton") == expected.rpartition(".")[0] + ".Worker"


@pytest.mark.parametrize(
    ("settings", "device", "words"),
    [({}, "_310P", "NPUWorker310"), ({"xlite_graph_config": {"enabled": True}}, "A3", "XliteWorker")],
)
def test_what_vllm_ascend_runs_in_another_worker_is_refused(settings: object, device: str, words: str) -> None:
    """By the name of that worker."""
    with pytest.raises(WorkerRefusedError, match=words):
        refuse_ascend(settings, device)


@pytest.mark.parametrize(
    "settings", [None, {}, {"xlite_graph_config": {"enabled": False}}, {"xlite_graph_config": None}]
)
def test_the_plain_worker_of_vllm_ascend_is_ours_too(settings: object) -> None:
    """Whatever else its settings are."""
    refuse_ascend(settings, "A2")


def test_an_unknown_device_is_named() -> None:
    """The sentence says what there is."""
    with pytest.raises(UnknownDeviceError, match=r"'tpu'.*cpu, cuda, npu"):
        worker_class("tpu")
