"""The processes of one benchmark run: forked, pinned, put into a namespace, waited for, stopped; and servers among them."""

import argparse
import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from baton.contracts.secret import generate_secret, read_secret
from baton.deploy.forkserver import Child, ForkServer
from baton.deploy.logs import last_lines
from benchmarks import bench_model, usage
from benchmarks.harness import MODEL, QUIET, RARE_PROBES, BenchError, free_port, workplace
from benchmarks.netns import target_in
from benchmarks.overlap.network import DECODE_DATA, DECODE_HTTP, PREFILL_DATA, PREFILL_HTTP, Network

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 10.0
PROXY: Final = "baton.proxy.__main__:main"
VLLM: Final = "benchmarks.overlap.targets:vllm_server"
ENGINE: Final = "VLLM::Engine"  # how the names of vLLM's engines begin
PREFILL_CORE: Final = 0
DECODE_CORE: Final = 1
KV_CACHE_BYTES: Final = 256 << 20
FIRST_PORT: Final = 8100  # in the namespaces every port is free; a system gives higher ones to connections
PAIRS: Final = ("--when-no-prefill", "refuse", "--placement", "pairs")  # of a proxy that hands over all prompts
EAGER: Final = "--enforce-eager"  # as our nodes choose on a CPU
_COMMON: Final = ("--host", "0.0.0.0", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES))  # noqa: S104  # namespaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Core, network namespace and data address of a process."""

    netns: str = ""
    core: int  # of the thread that computes
    pinned: bool = True  # all other threads have that core, too; otherwise any
    data_host: str = ""  # its address on the data link

    @property
    def env(self) -> dict[str, str | None]:
        hosts: dict[str, str | None] = {}
        if self.data_host:
            hosts = {"VLLM_HOST_IP": self.data_host, "MC_TCP_BIND_ADDRESS": self.data_host}
        return {"OMP_NUM_THREADS": "1"} | hosts


class Processes:
    """Starts processes and stops those that are left."""

    def __init__(self, forkserver: ForkServer, folder: Path, http: aiohttp.ClientSession) -> None:
        self._forkserver = forkserver
        self.folder = folder
        self.http = http
        self._children: dict[str, Child] = {}

    def start(
        self,
        name: str,
        target: str,
        kwargs: Mapping[str, Any],
        place: Place,
        env: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start a process. The name must be new."""
        assert name not in self._children, name
        cpus = (place.core,) if place.pinned else ()
        target, kwargs = target_in(place.netns, target, kwargs)
        self._children[name] = self._forkserver.spawn(
            target, kwargs=kwargs, env=place.env | dict(env or {}), log=self._log(name), cpus=cpus
        )

    async def serve(
        self,
        name: str,
        target: str,
        argv: Sequence[str],
        place: Place,
        url: str,
        *,
        path: str = "/health",
        env: Mapping[str, str | None] | None = None,
    ) -> str:
        """Start a server; return its URL once it answers 200. Raises `BenchError`, with the end of its log: it ended, or took too long."""

        async def answers() -> bool:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self.http.get(url + path) as response:
                    return response.status == 200
            return False

        self.start(name, target, {"argv": list(argv)}, place, env)
        await self._wait(name, answers)
        return url

    async def proxy(self, name: str, flags: Sequence[str], place: Place, env: Mapping[str, str] = RARE_PROBES) -> str:
        port = free_port()
        argv, url = ["--port", str(port), *flags], f"http://127.0.0.1:{port}"
        return await self.serve(name, PROXY, argv, place, url, path="/ready", env=env)

    def pid(self, name: str) -> int:
        return self._children[name].pid

    async def wait_for_file(self, name: str, path: Path) -> None:
        async def is_there() -> bool:
            return path.exists()  # noqa: ASYNC240  # one look at a temporary folder

        await self._wait(name, is_there)

    def engines(self, name: str) -> list[int]:
        return usage.named(self._children[name].pid, ENGINE)

    def stop(self, *names: str) -> None:
        stopping = [self._children.pop(name) for name in names or list(self._children)]
        for child in stopping:
            for engine in usage.named(child.pid, ENGINE):
                os.kill(engine, signal.SIGCONT)  # one that is resting hears of nothing
            child.terminate()
        for child in stopping:
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(STOP_TIMEOUT_S)

    async def _wait(self, name: str, condition: Callable[[], Awaitable[bool]]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(START_TIMEOUT_S):
                while not await condition():
                    if self._children[name].poll() is not None:
                        break
                    await asyncio.sleep(0.05)
                else:
                    return
        raise BenchError(f"{name} did not come up; its last lines:\n" + "\n".join(last_lines(self._log(name), 15)))

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@contextmanager
def two_nodes(name: str, given: argparse.Namespace) -> Iterator[tuple[Network, ForkServer, Path]]:
    """Yield namespaces, fork server and folder for two nodes; write the bench model if it is missing.

    Raises `BenchError`: each node needs a core, and there is one.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise BenchError("the two nodes need a core each, and this machine has one")
    with Network() as network, workplace(name, logs=given.logs) as (forkserver, folder):
        bench_model.ensure(MODEL, mlp=given.mlp)
        yield network, forkserver, folder


@asynccontextmanager
async def processes(forkserver: ForkServer, folder: Path, *, timeout_s: float) -> AsyncIterator[Processes]:
    """Yield what starts processes, with a session to ask them."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as http:
        made = Processes(forkserver, folder, http)
        try:
            yield made
        finally:
            made.stop()


class Servers:
    """Starts vLLM servers, Baton's nodes and its proxies."""

    def __init__(self, network: Network, processes: Processes, *, pinned: bool = True) -> None:
        """Make it; `pinned`: a server and all its threads have one core, else its model thread has one and the rest any."""
        self.network = network
        self.processes = processes
        self.http = processes.http
        self._port = FIRST_PORT
        secret_file = processes.folder / "secret"
        secret_file.write_text(generate_secret())
        self.secret = ("--secret-file", str(secret_file))
        self.model = str(MODEL)
        self.token = read_secret(secret_file).node_token()
        self.prefill = Place(netns=network.prefill, core=PREFILL_CORE, pinned=pinned, data_host=PREFILL_DATA)
        self.decode = Place(netns=network.decode, core=DECODE_CORE, pinned=pinned, data_host=DECODE_DATA)

    def next_port(self) -> int:
        self._port += 1
        return self._port

    async def vllm(
        self, name: str, target: str, place: Place, flags: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> str:
        port, host = self.next_port(), PREFILL_HTTP if place is self.prefill else DECODE_HTTP
        argv = ["--model", self.model, "--port", str(port), *_COMMON, *QUIET, *flags]
        url = await self.processes.serve(name, target, argv, place, f"http://{host}:{port}", env=env)
        for engine in self.processes.engines(name):  # its main thread is the model thread
            os.sched_setaffinity(engine, {place.core})
        return url

    async def proxy(self, name: str, flags: Sequence[str]) -> str:
        return await self.processes.proxy(name, (*self.secret, *flags), Place(core=DECODE_CORE))
