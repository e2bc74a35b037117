import resource
from pathlib import Path

import pytest

from baton.contracts.probe import UNLIMITED, RdmaDevice
from baton.node.machine import locked_bytes, machine, rdma_devices


def card(folder: Path, name: str, *states: str) -> None:
    for number, state in enumerate(states, start=1):
        port = folder / name / "ports" / str(number)
        port.mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")


def test_a_card_is_active_if_one_of_its_ports_is(tmp_path: Path) -> None:
    """As /sys/class/infiniband shows them."""
    card(tmp_path, "mlx5_0", "1: DOWN", "4: ACTIVE")
    card(tmp_path, "mlx5_1", "1: DOWN")

    assert rdma_devices(tmp_path) == [
        RdmaDevice(name="mlx5_0", active=True),
        RdmaDevice(name="mlx5_1", active=False),
    ]
    assert rdma_devices(tmp_path / "nowhere") == []


INITIAL, OF_A_CONTAINER = "0 0 4294967295", "0 100000 65536"  # user namespaces


@pytest.mark.parametrize(
    ("capabilities", "users", "expected"),
    [
        ("0000000000004000", INITIAL, UNLIMITED),  # IPC_LOCK alone
        ("000001ffffffffff", INITIAL, UNLIMITED),
        ("00000000a80425fb", INITIAL, 65_536),  # Docker's usual ones
        ("000001ffffffffff", OF_A_CONTAINER, 65_536),  # it counts in the initial namespace only
        ("", INITIAL, 65_536),
    ],
)
def test_ipc_lock_lifts_the_limit_of_pinned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capabilities: str, users: str, expected: int
) -> None:
    """The kernel asks for it first, so a pod with it needs no `ulimit -l`."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65_536, resource.RLIM_INFINITY))
    (tmp_path / "status").write_text(
        f"Name:\tpython\nCapEff:\t{capabilities}\nCapBnd:\t0000000000004000\nSeccomp:\t0\n" if capabilities else ""
    )
    (tmp_path / "uid_map").write_text(f"         {users}\n")

    assert locked_bytes(tmp_path) == expected


def test_one_process_finds_the_same_machine_twice() -> None:
    """Two nodes on it are told from two on others by that name."""
    assert machine("10.0.0.1", "tcp") == machine("10.0.0.1", "tcp")
    assert machine("10.0.0.1", "tcp").name.strip()
