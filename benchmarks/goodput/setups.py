"""The setups: two nodes, each with the same part of a core, and a proxy in front. One at a time."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.overlap.network import Network
from benchmarks.overlap.processes import Place, Processes, Servers
from benchmarks.plan_check.rig import CpuQuota

PLAIN: Final = "plain"
_PREFILL, _DECODE = "prefill", "decode"
# A plain server is a decode node, since the proxy takes no others: without a prefill node it computes prompts as vLLM does.
SETUPS: Final = {PLAIN: (_DECODE, _DECODE), "disaggregated": (_PREFILL, _DECODE), "baton": (_PREFILL, _DECODE)}


class Running(NamedTuple):
    """What listens where."""

    proxy: str
    nodes: Sequence[str]


class Stage:
    """Starts a setup in place of the one before, on the two hosts of a network."""

    def __init__(self, network: Network, processes: Processes, folder: Path, *, cores: float) -> None:
        """`cores`: of each node; the rest is for proxy and client."""
        self._processes = processes
        self._servers = Servers(network, processes, folder, pinned=True)
        self._cores = cores
        self._quotas = ExitStack()
        self._groups: list[CpuQuota] = []
        self._started = 0

    async def start(self, setup: str, proxy_flags: Sequence[str]) -> Running:
        """Start a setup. Nodes start at full speed; the quota begins once they serve."""
        self.stop()
        places = (self._servers.prefill, self._servers.decode)
        names = [self._name(role) for role in SETUPS[setup]]
        nodes = await asyncio.gather(*map(self._start_node, names, SETUPS[setup], places))
        for name in names:
            group = CpuQuota(f"baton-goodput-{name}", self._cores)
            self._quotas.enter_context(group).add(self._processes.pid(name))
            self._groups.append(group)
        joined = [part for role, url in zip(SETUPS[setup], nodes, strict=True) for part in (f"--{role}", url)]
        flags = (*self._servers.secret, *joined, *proxy_flags)
        proxy = await self._processes.proxy(self._name("proxy"), flags, Place(core=0, pinned=False), env={})
        return Running(proxy, nodes)

    def stop(self) -> None:
        self._processes.stop()
        self._quotas.close()
        self._groups.clear()

    def throttled(self) -> Sequence[float]:
        """Return for each node the share of periods in which it had used up its quota."""
        return [group.throttled() for group in self._groups]

    async def _start_node(self, name: str, role: str, place: Place) -> str:
        flags = ("--advertise-host", place.data_host, *self._servers.secret)
        return await self._servers.vllm(name, f"baton.{role}_node.__main__:main", place, flags)

    def _name(self, role: str) -> str:
        self._started += 1
        return f"{role}-{self._started}"
