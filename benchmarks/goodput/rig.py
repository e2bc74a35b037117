"""Nodes in CPU quotas behind a proxy: one shape at a time. Root only, Linux only.

Quotas are control groups of either version. A quota is spent in periods: with 40 ms of each 100 ms a process runs at
full speed, then not at all for 60 ms, which a token that takes 20 ms notices. So periods are short.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final, Self

from baton.contracts.secret import generate_secret
from baton.loadtest.plan.simulate import Shape
from benchmarks.harness import BenchError
from benchmarks.overlap.processes import Place, Servers
from benchmarks.usage import descendants

V1: Final = Path("/sys/fs/cgroup/cpu")
V2: Final = Path("/sys/fs/cgroup")
PERIOD_US: Final = 5000
EMPTY_S: Final = 5.0  # for the processes that were ended to be gone
BATCHED_TOKENS: Final = 2048
ROLES: Final = "baton.deploy.roles.command:main"


class QuotaError(BenchError):
    """There is no control group for CPU time that we may use; the message says why."""


def find_root(v1: Path = V1, v2: Path = V2) -> Path:
    """Return the folder in which groups are made. Raises `QuotaError`: there is none."""
    if (v1 / "cpu.cfs_quota_us").exists():
        return v1
    if (v2 / "cgroup.controllers").exists() and "cpu" in (v2 / "cgroup.controllers").read_text().split():
        return v2
    raise QuotaError(f"no control group for CPU time at {v1} or {v2}: quotas need root, and cgroups v1 or v2")


class CpuQuota:
    """A group whose processes together get `cores` of the machine."""

    def __init__(self, name: str, cores: float, *, root: Path | None = None) -> None:
        self._root = root or find_root()
        self._folder = self._root / name
        self._quota_us = round(cores * PERIOD_US)

    def __enter__(self) -> Self:
        """Make the group. Raises `QuotaError`: the system does not let us."""
        limits = {"cpu.max": f"{self._quota_us} {PERIOD_US}"}
        if self._is_v1:
            limits = {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(self._quota_us)}
        try:
            if not self._is_v1:
                (self._root / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir(exist_ok=True)
            for name, value in limits.items():
                (self._folder / name).write_text(value)
        except OSError as exc:
            raise QuotaError(f"cannot make a CPU quota at {self._folder}: {exc.strerror}") from exc
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._members():
            with suppress(OSError):  # it has just ended
                (self._root / "cgroup.procs").write_text(pid)
        until_s = time.monotonic() + EMPTY_S
        while self._folder.exists() and time.monotonic() < until_s:
            with suppress(OSError):  # the kernel is not done with those that ended
                self._folder.rmdir()
                return
            time.sleep(0.05)

    def add(self, pid: int) -> None:
        """Put a process and all that descend from it into the group. Raises `QuotaError`: there is no such process."""
        try:
            for each in (pid, *descendants(pid)):
                (self._folder / "cgroup.procs").write_text(str(each))
        except OSError as exc:
            raise QuotaError(f"cannot put process {pid} under a CPU quota: {exc.strerror}") from exc

    @property
    def _is_v1(self) -> bool:
        return not (self._root / "cgroup.controllers").exists()

    def _members(self) -> list[str]:
        try:
            return (self._folder / "cgroup.procs").read_text().split()
        except OSError:
            return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """URLs of the servers that run."""

    proxy: str
    decode: tuple[str, ...]


class Rig:
    """Starts shapes, which run beside each other until all are stopped."""

    def __init__(self, servers: Servers, *, cores: float, dtype: str) -> None:
        """`cores` and `dtype`: of each node."""
        self._servers = servers
        self._processes = servers.processes
        self._cores = cores
        self._dtype = dtype
        self._token_file = self._processes.folder / "token"
        self._token_file.write_text(generate_secret())
        self._quotas = ExitStack()
        self._started = 0

    async def start(
        self,
        shape: Shape,
        proxy_words: Sequence[str],
        *,
        both_ways: bool = False,
        roles_words: Sequence[str] | None = None,
    ) -> Running:
        """Start a shape. Nodes start at full speed; the quota begins once they serve.

        `proxy_words`: flags, and settings as BATON_…=…. `both_ways`: nodes send and receive. `roles_words`: flags of
        `baton roles`; None: roles stay.
        """
        roles = [*["prefill"] * shape.prefill, *["decode"] * shape.decode]
        places = cycle((self._servers.prefill, self._servers.decode))  # one on each core
        nodes = [await self._node(role, next(places), both_ways=both_ways) for role in roles]
        prefill, decode = nodes[: shape.prefill], nodes[shape.prefill :]
        env = dict(word.split("=", 1) for word in proxy_words if word.startswith("BATON_"))
        given = (word for word in proxy_words if not word.startswith("BATON_"))
        flags = (
            *given,
            *self._servers.secret,
            "--admin-token-file",
            str(self._token_file),
            *(["--prefill", *prefill] if prefill else []),
            "--decode",
            *decode,
        )
        url = await self._processes.proxy(self._name("proxy"), flags, Place(core=0, pinned=False), env=env)
        if roles_words is not None:
            argv = ["--proxies", url, "--token-file", str(self._token_file), *roles_words]
            self._processes.start(self._name("roles"), ROLES, {"argv": argv}, Place(core=0, pinned=False))
        return Running(proxy=url, decode=tuple(decode))

    def stop(self) -> None:
        self._processes.stop()
        self._quotas.close()

    async def _node(self, role: str, place: Place, *, both_ways: bool) -> str:
        name, servers = self._name(role), self._servers
        flags = ["--dtype", self._dtype, *servers.secret, "--max-num-batched-tokens", str(BATCHED_TOKENS)]
        flags += ["--advertise-host", place.data_host]
        if both_ways:
            flags += ["--both-ways", "true"]
        if both_ways or role == "prefill":
            flags += ["--control-port", str(servers.next_port())]
        url = await servers.vllm(name, f"baton.{role}_node.__main__:main", place, flags)
        self._quotas.enter_context(CpuQuota(f"baton-{name}", self._cores)).add(self._processes.pid(name))
        return url

    def _name(self, role: str) -> str:
        self._started += 1
        return f"goodput-{role}-{self._started}"
