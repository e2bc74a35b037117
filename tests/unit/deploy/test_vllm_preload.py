"""What the zygote imports, whichever version of vLLM there is."""

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from baton.deploy import vllm_preload


def test_the_server_is_found_where_its_version_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM 0.29 keeps its server there was no package before, and what is in none does not exist either."""
    here = {vllm_preload.SERVERS[1]: object()}

    def find_spec(name: str) -> Any:
        if name.startswith("vllm.entrypoints.launchers"):
            raise ModuleNotFoundError(name)
        return here.get(name)

    imported: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(importlib, "import_module", imported.append)
    monkeypatch.setattr(sys, "modules", {name: SimpleNamespace() for name in vllm_preload.FORKING})

    vllm_preload.prepare()

    assert imported == [vllm_preload.SERVERS[1], *vllm_preload.PRELOADED, *vllm_preload.FORKING]
