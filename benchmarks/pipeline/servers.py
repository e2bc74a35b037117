"""Starts one server of two pipeline stages per way of transfer; all share the machine, and one at a time is asked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp

from baton.model_runner.pipeline.choose import VARIABLE
from benchmarks.harness import QUIET
from benchmarks.overlap.network import PREFILL_HTTP, Network
from benchmarks.overlap.processes import Place, Processes
from benchmarks.overlap.subjects import Plain

TARGET: Final = "benchmarks.overlap.targets:vllm_server"
FIRST_PORT: Final = 8100  # in the namespace every port is free
STAGES: Final = 2
_FLAGS: Final = (
    *("--host", "0.0.0.0", *QUIET),  # noqa: S104  # a namespace
    *("--enforce-eager", "--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(256 << 20)),
    *("--worker-cls", "baton.model_runner.cpu.Worker", "--pipeline-parallel-size", str(STAGES)),
)


async def start(
    ways: Sequence[str],
    flags: Sequence[str],
    *,
    model: Path,
    network: Network,
    processes: Processes,
    http: aiohttp.ClientSession,
) -> dict[str, Plain]:
    """Start the servers; return each, ready to be asked. Raises `RigError`: one did not come up."""
    place = Place(netns=network.prefill, core=0, pinned=False)  # each stage takes the core that is free
    found = {}
    for port, way in enumerate(ways, FIRST_PORT):
        argv = ["--model", str(model), "--port", str(port), *_FLAGS, *flags]
        processes.start(way, TARGET, {"argv": argv}, place, {VARIABLE: way})
        url = f"http://{PREFILL_HTTP}:{port}"
        await processes.wait_for_url(way, f"{url}/health")
        found[way] = Plain(http=http, model=str(model), url=url)
    return found
