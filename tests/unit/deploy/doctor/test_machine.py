import pytest

from baton.contracts.probe import UNLIMITED, RdmaDevice
from baton.deploy.doctor.machine import MIN_OPEN_FILES, diagnose
from tests.unit.deploy.doctor.known import machine

CARD = RdmaDevice(name="mlx5_0", active=True)
UNPLUGGED = RdmaDevice(name="mlx5_0", active=False)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"open_files": MIN_OPEN_FILES}, []),
        ({"open_files": MIN_OPEN_FILES - 1}, ["open-files"]),
        ({"open_files": UNLIMITED}, []),
        ({"locked_bytes": 65_536}, []),
        ({"protocol": "rdma", "rdma_devices": [CARD]}, []),
        ({"protocol": "rdma"}, ["rdma-device"]),
        ({"protocol": "rdma", "rdma_devices": [UNPLUGGED]}, ["rdma-device"]),
        ({"protocol": "rdma", "rdma_devices": [UNPLUGGED, CARD]}, []),
        ({"protocol": "rdma", "rdma_devices": [CARD], "locked_bytes": 65_536}, ["locked-memory"]),
    ],
)
def test_a_machine_is_judged_by_its_limits_and_cards(changes: dict[str, object], found: list[str]) -> None:
    """Pinned memory and cards count where the transport is RDMA."""
    assert [each.code for each in diagnose(machine(**changes), "here")] == found


@pytest.mark.parametrize(("kv_bytes", "found"), [(65_536, []), (65_537, ["locked-memory"]), (None, ["locked-memory"])])
def test_as_much_memory_must_be_pinned_as_the_cache_has(kv_bytes: int | None, found: list[str]) -> None:
    """Where that is not known yet, any limit is too low."""
    limited = machine(protocol="rdma", rdma_devices=[CARD], locked_bytes=65_536)

    assert [each.code for each in diagnose(limited, "here", kv_bytes)] == found
