"""vLLM's configuration as a machine with CUDA would make it, made here: `python -m tests.support.cuda_config < cases.json`.

A process of its own, since vLLM's modules keep the platform that they were imported under. The platform is vLLM's own class
for CUDA; what it would ask a driver is answered for an H100, and Triton counts as there. Nothing is loaded or run.

Reads a list of cases `{"flags": [...], "env": {...}}` with arguments of vLLM's server, and writes for each of them
`{"mode": ..., "settled": [...], "v2": ...}`, or `{"refused": ..., "by": "vLLM" or "Baton"}`. The mode is that of the configuration; it is
settled once more when the KV cache is made, by what the attention supports: all that can come of it is listed.
"""

import copy
import itertools
import json
import os
import sys
import types
from typing import Any

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat.runner_order import check_graphs

STUBS = ("vllm._C_stable_libtorch", "vllm._C", "vllm._moe_C", "vllm._moe_C_stable_libtorch")


def pretend() -> None:
    """Make vLLM take this machine for one with CUDA. Before anything else of vLLM is imported."""
    for name in STUBS:
        sys.modules[name] = types.ModuleType(name)
    import vllm.platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Pretended(cuda.NonNvmlCudaPlatform):  # type: ignore[misc,unused-ignore]
        """vLLM's platform, with a driver's answers."""

        @classmethod
        def get_device_capability(cls, *_: int, **__: int) -> Any:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, *_: int, **__: int) -> str:
            return "NVIDIA H100"

        @classmethod
        def get_device_total_memory(cls, *_: int, **__: int) -> int:
            return 80 << 30

        @classmethod
        def num_compute_units(cls, *_: int, **__: int) -> int:
            return 132

    vllm.platforms._current_platform = Pretended()
    from vllm import triton_utils
    from vllm.triton_utils import importing

    triton_utils.HAS_TRITON = importing.HAS_TRITON = True


def describe(flags: list[str]) -> dict[str, Any]:
    """Make the configuration that these flags ask for."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    try:
        config = AsyncEngineArgs.from_cli_args(parser.parse_args(flags)).create_engine_config()
    except (ValueError, AssertionError) as exc:
        return {"refused": str(exc), "by": "vLLM"}
    try:
        check_graphs(config, "auto")
    except ConnectorConfigError as exc:
        return {"refused": str(exc), "by": "Baton"}
    graphs = config.compilation_config
    return {"mode": graphs.cudagraph_mode.name, "settled": settled(config), "v2": config.use_v2_model_runner}


def settled(config: Any) -> list[str]:
    """Return what vLLM's runner may make of the mode."""
    from vllm.v1.attention.backend import AttentionCGSupport

    found = set()
    for support, query_len, has_pieces in itertools.product(AttentionCGSupport, (1, 4), (True, False)):
        try:
            mode = copy.copy(config.compilation_config).resolve_cudagraph_mode_and_sizes(
                support,
                "an attention",
                query_len,
                use_v2_model_runner=config.use_v2_model_runner,
                piecewise_capture_available=has_pieces,
            )
        except ValueError:
            continue
        found.add(mode.name)
    return sorted(found)


def main() -> None:
    pretend()
    clean = dict(os.environ)
    found = []
    for case in json.load(sys.stdin):
        os.environ.clear()
        os.environ.update(clean | case.get("env", {}))
        found.append(describe(case["flags"]))
    sys.__stdout__.write("\nRESULT " + json.dumps(found) + "\n")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
