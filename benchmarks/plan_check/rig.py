"""Nodes in CPU quotas behind a proxy: one shape at a time."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from baton.contracts.secret import generate_secret
from baton.loadtest.plan.simulate import Shape
from benchmarks.cpu_quota import CpuQuota
from benchmarks.harness import MODEL, QUIET
from benchmarks.overlap.processes import Place, Processes, free_port

KV_CACHE_BYTES: Final = 256 << 20
BATCHED_TOKENS: Final = 2048
CORES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What listens where."""

    proxy: str
    prefill: tuple[str, ...]
    decode: tuple[str, ...]


class Rig:
    """Starts a shape in place of the one before."""

    def __init__(self, processes: Processes, folder: Path, *, cores: float, prefix: str = "") -> None:
        """`processes`: its own. `cores`: of each node. `prefix`: of the processes' names, which the folder has once."""
        self._prefix = prefix
        self._processes = processes
        self._folder = folder
        self._cores = cores
        self._secret = ("--secret-file", str(folder / "secret"))
        (folder / "secret").write_text(generate_secret())
        self._quotas = ExitStack()
        self._groups: list[CpuQuota] = []
        self._started = 0

    async def start(self, shape: Shape) -> Running:
        """Start a shape. Nodes start at full speed; the quota begins once they serve."""
        self.stop()
        prefill = [await self._node("prefill", at % CORES) for at in range(shape.prefill)]
        decode = [await self._node("decode", (shape.prefill + at) % CORES) for at in range(shape.decode)]
        flags = ("--when-no-prefill", "refuse", *self._secret, "--prefill", *prefill, "--decode", *decode)
        url = await self._processes.proxy(self._name("proxy"), flags, Place(core=0, pinned=False), env={})
        return Running(proxy=url, prefill=tuple(prefill), decode=tuple(decode))

    def stop(self) -> None:
        self._processes.stop()
        self._quotas.close()
        self._groups.clear()

    def throttled(self) -> Sequence[float]:
        """Return for each node the share of periods in which it had used up its quota."""
        return [group.throttled() for group in self._groups]

    async def _node(self, role: str, core: int) -> str:
        name, port = self._name(role), free_port()
        argv = ["--model", str(MODEL), "--host", "127.0.0.1", "--port", str(port), *self._secret, *QUIET]
        argv += ["--kv-cache-memory-bytes", str(KV_CACHE_BYTES), "--max-num-batched-tokens", str(BATCHED_TOKENS)]
        argv += ["--no-enable-prefix-caching"]  # the same prompts come in every run
        if role == "prefill":
            argv += ["--control-port", str(free_port())]
        target, place = f"baton.{role}_node.__main__:main", Place(core=core)
        url = await self._processes.serve(name, target, argv, place, f"http://127.0.0.1:{port}")
        group = CpuQuota(f"baton-{name}", self._cores)
        self._quotas.enter_context(group).add(self._processes.pid(name))
        self._groups.append(group)
        return url

    def _name(self, role: str) -> str:
        self._started += 1
        return f"{self._prefix}{role}-{self._started}"
