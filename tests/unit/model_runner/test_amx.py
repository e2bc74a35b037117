"""AMX tiles must be asked for before vLLM's attention uses them."""

import pytest
import torch

from baton.model_runner import cpu


def test_tiles_are_asked_for_where_the_cpu_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decode node's first pass is one token, before which nothing else would ask (illegal instruction)."""
    answers = iter([True])
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: next(answers))

    cpu.ask_for_amx()

    assert list(answers) == []


def test_a_cpu_without_tiles_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to ask for."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: pytest.fail("asked"))

    cpu.ask_for_amx()


def test_a_refusal_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better no start than a process that dies at its first token."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)

    with pytest.raises(RuntimeError, match="AMX"):
        cpu.ask_for_amx()


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="this CPU has no AMX")
def test_the_kernel_grants_them_here() -> None:
    """And as often as it is asked."""
    cpu.ask_for_amx()
    cpu.ask_for_amx()
