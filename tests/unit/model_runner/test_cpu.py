"""A CPU worker: how many threads it computes with, and the AMX tiles that it asks for before vLLM's attention uses them."""

import pytest
import torch

from baton.model_runner import cpu
from baton.model_runner.cpu import compute_threads


@pytest.mark.parametrize(
    ("environ", "current", "cores", "expected"),
    [
        ({}, 2, 4, 2),
        ({}, 8, 2, 2),  # forked from a process that had all cores
        ({"OMP_NUM_THREADS": "1"}, 8, 2, 1),  # set after OpenMP was loaded, in the zygote
        ({"OMP_NUM_THREADS": "16"}, 8, 2, 2),
        ({"OMP_NUM_THREADS": "0"}, 2, 4, 2),
        ({"OMP_NUM_THREADS": "2,1"}, 3, 4, 3),  # nested levels: left to OpenMP
    ],
)
def test_the_environment_counts_but_never_beyond_the_cores(
    environ: dict[str, str], current: int, cores: int, expected: int
) -> None:
    """A forked process has its parent's thread count until it is told otherwise."""
    assert compute_threads(environ, current, cores) == expected


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
