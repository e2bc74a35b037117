from pathlib import Path

import pytest

from baton.contracts.configuration.schema import BatonConfig, NodeConfig
from baton.deploy.environment import Device, visible_devices, zygote_environment
from baton.deploy.serve import parse, ranks_of_nodes
from baton.deploy.stack import Surroundings, plan


def test_the_zygotes_environment_is_set_before_vllm_is_imported() -> None:
    """Quiet, eager, one process for engine and worker; what would override the cache size is removed, what the user has set stays.

    Offline mode is for local folders, and switching the tracer off is for eager servers.
    """
    theirs = {"PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_LOGGING_LEVEL": "DEBUG"}
    environ = zygote_environment(theirs, offline=True)
    other = zygote_environment({}, offline=False, vllm_args=("-O", "2"))

    assert environ["PATH"] == "/bin"
    assert environ["TORCHDYNAMO_DISABLE"] == "1"
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["HF_HUB_OFFLINE"] == "1"
    assert environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environ
    assert not {"HF_HUB_OFFLINE", "TORCHDYNAMO_DISABLE"} & other.keys()


@pytest.mark.parametrize(
    ("device", "counts", "current", "expected"),
    [
        ("cpu", [1, 1], None, [{}, {}]),
        ("cuda", [1, 1], None, [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]),
        ("cuda", [2, 2], None, [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]),
        ("cuda", [1, 1], "4,6", [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "6"}]),
        ("cuda", [2, 1], "7,5,3,1", [{"CUDA_VISIBLE_DEVICES": "7,5"}, {"CUDA_VISIBLE_DEVICES": "3"}]),
        ("npu", [1, 4], None, [{"ASCEND_RT_VISIBLE_DEVICES": "0"}, {"ASCEND_RT_VISIBLE_DEVICES": "1,2,3,4"}]),
    ],
)
def test_every_node_sees_devices_of_its_own(
    device: Device, counts: list[int], current: str | None, expected: list[dict[str, str]]
) -> None:
    """Devices are dealt out in order, to each node as many as it uses, from those that the user left visible."""
    found = visible_devices(device, {str(number): each for number, each in enumerate(counts)}, current)

    assert list(found.values()) == expected


def test_roles_of_different_sizes_get_devices_accordingly() -> None:
    """A prefill node of two ranks beside a decode node of one: the last flag in sight is not everybody's."""
    config = BatonConfig(
        prefill_node=NodeConfig(vllm_args=("-tp", "2")),
        decode_node=NodeConfig(port=8200, vllm_args=("-tp", "1")),
    )
    options = parse([])
    stack = plan(config, Surroundings(file=None, secret_file=Path("secret")))

    assert ranks_of_nodes(config, options, stack) == {"prefill-0": 2, "decode-0": 1}
    assert ranks_of_nodes(config, parse(["-dp", "2"]), stack) == {"prefill-0": 4, "decode-0": 2}
