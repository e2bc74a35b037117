"""Ports that receiving engines have used are not used again soon, not even by another process."""

import time
from pathlib import Path

import pytest

from kv_connector.engine.port_memory import KEPT_S, PortMemory


def test_another_process_sees_the_ports(tmp_path: Path) -> None:
    """Trap 11: a restarted node avoids its predecessor's ports."""
    PortMemory(tmp_path / "ports").add([15001, 15002])
    PortMemory(tmp_path / "ports").add([15003])

    assert PortMemory(tmp_path / "ports").recent() == {15001, 15002, 15003}


def test_without_a_file_nothing_is_remembered(tmp_path: Path) -> None:
    """The first start on a machine."""
    assert PortMemory(tmp_path / "ports").recent() == set()


def test_old_ports_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range is small, so ports must come back some day; what is in the file stays small as well."""
    memory = PortMemory(tmp_path / "ports")
    memory.add([15001])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + KEPT_S + 60)

    memory.add([15002])

    assert memory.recent() == {15002}
    assert len((tmp_path / "ports").read_text().splitlines()) == 1
