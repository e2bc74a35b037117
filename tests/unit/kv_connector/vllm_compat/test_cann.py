"""Where a thread may wait for an event of an NPU."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest

from baton.kv_connector.vllm_compat import cann
from baton.kv_connector.worker_side.sync import resolve_layer_sync


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, object], None]:
    """Puts a version's answer into one of torch_npu's modules, the others being without it."""

    def install(module: str, answer: object) -> None:
        def get_cann_version() -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        for name in ("torch_npu", "torch_npu.npu", *cann._MODULES):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(get_cann_version=get_cann_version))

    return install


@pytest.mark.parametrize("module", cann._MODULES)
@pytest.mark.parametrize(
    ("version", "policy"),
    [
        *(("8.3.RC1", "stream"), ("8.4.0", "stream"), ("7.9.9", "stream"), ("", "stream"), ("unknown", "stream")),
        *(("8.5.RC1", "event"), ("8.5.0", "event"), ("8.10.0", "event"), ("9.1.0", "event")),
    ],
)
def test_auto_waits_for_events_from_cann_8_5_on(
    installed: Callable[[str, object], None], module: str, version: str, policy: str
) -> None:
    """A version that is not known counts as an old one."""
    installed(module, version)

    assert cann.version() == version
    assert resolve_layer_sync("auto", "npu") == policy
    assert resolve_layer_sync("auto", "cuda") == "event"


def test_a_library_that_cannot_tell_is_an_old_one(installed: Callable[[str, object], None]) -> None:
    """It reads files that a container may lack."""
    installed(cann._MODULES[0], RuntimeError("no ascend_toolkit_install.info"))

    assert cann.version() == ""
    assert resolve_layer_sync("auto", "npu") == "stream"
