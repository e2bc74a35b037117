"""What of vLLM's model runner a prefill node refuses."""

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from vllm.config import CompilationConfig, CUDAGraphMode

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat.runner_order import VOIDS_FIRST, check_graphs, check_order


def engine(*, producer: bool = True, v2: bool = True, worker: object = "workers.Theirs", **graphs: Any) -> Any:
    """An engine's configuration; by default a prefill node's on V2 with vLLM's own worker."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(is_kv_producer=producer),
        use_v2_model_runner=v2,
        parallel_config=SimpleNamespace(worker_cls=worker),
        compilation_config=CompilationConfig(**graphs),
    )


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a worker class of vLLM's, and ours."""
    module = ModuleType("workers")
    module.Theirs, module.Ours = type("Theirs", (), {}), type("Ours", (), {VOIDS_FIRST: True})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "workers", module)


@pytest.mark.parametrize("worker", ["workers.Theirs", "auto", "workers.Missing", type("Theirs", (), {})])
def test_a_worker_that_says_nothing_is_vllm_s_own(worker: object) -> None:
    """However it is named. On V2 that is refused by name."""
    words = (
        rf"V2 model runner .* {re.escape(str(worker))} does not .* --worker-cls baton\.model_runner\.cuda\.EngineWorker"
    )
    with pytest.raises(ConnectorConfigError, match=words):
        check_order(engine(worker=worker))


OF_0_23 = engine()  # whose configuration does not know the second runner
del OF_0_23.use_v2_model_runner


@pytest.mark.parametrize(
    "config",
    [
        *(engine(worker="workers.Ours"), engine(v2=False), engine(producer=False)),
        *(SimpleNamespace(kv_transfer_config=None), OF_0_23),
        engine(worker=type("Ours", (), {VOIDS_FIRST: True})),
    ],
    ids=["our worker", "V1", "decode node", "no connector", "vLLM 0.23", "our worker, given as a class"],
)
def test_who_voids_first_or_need_not_is_let_in(config: Any) -> None:
    """The common cases raise nothing."""
    check_order(config)


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY, CUDAGraphMode.FULL_AND_PIECEWISE])
def test_full_graphs_are_refused_where_hooks_are_needed(mode: CUDAGraphMode) -> None:
    """Not on a decode node, and not where all layers leave after the pass."""
    full = engine(cudagraph_mode=mode)

    with pytest.raises(ConnectorConfigError, match=rf"cudagraph_mode {mode.name} .* PIECEWISE or NONE"):
        check_graphs(full, "event")
    check_graphs(full, "forward")
    check_graphs(engine(producer=False, cudagraph_mode=mode), "event")


def test_pieces_must_leave_attention_out() -> None:
    """A piece with the attention in it is replayed without the hooks around it."""
    attention = list(CompilationConfig._attention_ops)

    check_graphs(engine(cudagraph_mode=CUDAGraphMode.PIECEWISE, splitting_ops=attention), "auto")
    check_graphs(engine(cudagraph_mode=CUDAGraphMode.NONE, splitting_ops=[]), "auto")
    with pytest.raises(ConnectorConfigError, match="attention is captured"):
        check_graphs(engine(cudagraph_mode=CUDAGraphMode.PIECEWISE, splitting_ops=["vllm::all_reduce"]), "auto")


def test_breakable_graphs_break_at_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no splitting ops."""
    monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", "1")

    check_graphs(engine(cudagraph_mode=CUDAGraphMode.PIECEWISE, splitting_ops=[]), "auto")
