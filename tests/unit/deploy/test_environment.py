import pytest

from deploy.devices import Device, visible_devices
from deploy.environment import zygote_environment


def test_the_zygotes_environment_is_set_before_vllm_is_imported() -> None:
    """Quiet, eager, one process for engine and worker; what would override the cache size is removed."""
    environ = zygote_environment({"PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "4"}, offline=True)

    assert environ["PATH"] == "/bin"
    assert environ["TORCHDYNAMO_DISABLE"] == "1"
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environ


def test_what_the_user_has_set_stays() -> None:
    """Somebody who looks for a fault wants vLLM's log."""
    assert zygote_environment({"VLLM_LOGGING_LEVEL": "DEBUG"}, offline=False)["VLLM_LOGGING_LEVEL"] == "DEBUG"


def test_a_hub_model_may_be_fetched_and_a_compiled_one_traced() -> None:
    """Offline mode is for local folders, and switching the tracer off is for eager servers."""
    environ = zygote_environment({}, offline=False, vllm_args=("-O", "2"))

    assert "HF_HUB_OFFLINE" not in environ
    assert "TORCHDYNAMO_DISABLE" not in environ


@pytest.mark.parametrize(
    ("device", "index", "each", "current", "expected"),
    [
        ("cpu", 1, 1, None, {}),
        ("cuda", 0, 1, None, {"CUDA_VISIBLE_DEVICES": "0"}),
        ("cuda", 1, 2, None, {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ("cuda", 1, 1, "4,6", {"CUDA_VISIBLE_DEVICES": "6"}),
        ("npu", 2, 1, None, {"ASCEND_RT_VISIBLE_DEVICES": "2"}),
    ],
)
def test_every_node_sees_devices_of_its_own(
    device: Device, index: int, each: int, current: str | None, expected: dict[str, str]
) -> None:
    """Devices are dealt out in order, from those that the user left visible."""
    assert visible_devices(device, index, each, current) == expected
