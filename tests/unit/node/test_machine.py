import resource
from pathlib import Path

import pytest

from contracts.probe import UNLIMITED, RdmaDevice
from node.machine import locked_bytes, machine, rdma_devices


def card(folder: Path, name: str, *states: str) -> None:
    """Make a card as the kernel shows it."""
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


def test_a_machine_without_cards_has_none(tmp_path: Path) -> None:
    """The folder is not there."""
    assert rdma_devices(tmp_path / "nowhere") == []


def test_one_process_finds_the_same_machine_twice() -> None:
    """Two nodes on it are told from two on others by that name."""
    assert machine("10.0.0.1", "tcp") == machine("10.0.0.1", "tcp")
    assert machine("10.0.0.1", "tcp").name.strip()


@pytest.mark.parametrize(
    ("effective", "limit", "found"),
    [
        ("0000000000000000", 8 << 20, 8 << 20),
        ("0000000000004000", 8 << 20, UNLIMITED),
        ("00000000a80465fb", 8 << 20, UNLIMITED),
        ("00000000a80425fb", 8 << 20, 8 << 20),
        ("0000000000000000", resource.RLIM_INFINITY, UNLIMITED),
    ],
)
def test_a_capability_in_effect_lifts_the_limit_on_pinned_memory(effective: str, limit: int, found: int) -> None:
    """One that may be had, and is not, does nothing: so it is with users of containers to which IPC_LOCK is added."""
    status = f"Name:\tbaton\nCapPrm:\t{effective}\nCapEff:\t{effective}\nCapBnd:\t0000000000004000\n"

    assert locked_bytes(status, limit) == found


def test_without_a_status_the_limit_counts() -> None:
    """As in a sandbox without /proc."""
    assert locked_bytes("", 65_536) == 65_536
