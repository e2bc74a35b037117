"""What the zygote imports before it forks vLLM servers, and the one change that forking asks of vLLM."""

import importlib
import importlib.util
import multiprocessing
import sys

SERVERS = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")  # 2nd: before 0.29
PRELOADED = (
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.registry",
    "baton.node.server",
    "baton.kv_connector.connector",
)
# Where vLLM looks up how to start its own processes. Its CPU platform says "spawn", which would import all again.
FORKING = ("vllm.v1.engine.utils", "vllm.v1.engine.coordinator", "vllm.v1.executor.multiproc_executor")
NEVER = "mooncake.engine"  # brings a Go runtime with threads of its own, after which forking is unsafe


def prepare() -> None:
    server = next(name for name in SERVERS if _exists(name))
    for name in (server, *PRELOADED, *FORKING):
        importlib.import_module(name)
    for module in FORKING:
        sys.modules[module].get_mp_context = _fork_context  # type: ignore[attr-defined]  # replacing vLLM's own
    assert NEVER not in sys.modules, f"importing the node must not load {NEVER} before a fork"


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package that it is in
        return False


def _fork_context() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("fork")
