"""vLLM's own connectors, as they are put up here, and what they need that their documentation does not say."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import BenchError
from benchmarks.overlap.figures import NIXL, UPSTREAM, Sample
from benchmarks.overlap.network import DATA_DEVICE, PREFILL_DATA, PREFILL_HTTP
from benchmarks.overlap.processes import EAGER, Place, Servers
from benchmarks.overlap.subjects import Answer, Mooncake, Nixl, WireBytes

_TARGETS: Final = {
    UPSTREAM: "benchmarks.overlap.targets:vllm_with_mooncake",
    NIXL: "benchmarks.overlap.targets:vllm_with_nixl",
}
_CONNECTORS: Final[Mapping[str, dict[str, Any]]] = {
    UPSTREAM: {"kv_connector": "MooncakeConnector", "kv_connector_extra_config": {"mooncake_protocol": "tcp"}},
    NIXL: {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"},
}
NIXL_WHEELS: Final = ("nixl==1.5.1", "nixl-cu12==1.5.1")  # the second holds the library; it needs no CUDA for memory
NIXL_FOLDER: Final = Path.home() / ".cache" / "baton" / "nixl"
INSTALL_TIMEOUT_S: Final = 600.0


def install_nixl() -> None:
    """Put NIXL's wheels into a folder of their own, unless they are there. Raises `BenchError`: pip could not get them."""
    if (NIXL_FOLDER / "nixl").exists():
        return
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(NIXL_FOLDER), *NIXL_WHEELS]
    try:
        subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        raise BenchError(f"NIXL cannot be installed: {exc}") from exc


def name_of_decode(connector: str) -> str:
    return f"{connector}-decode"


async def start_mooncake(
    servers: Servers, name: str, chunk: Sequence[str], decode: str, wire_bytes: WireBytes
) -> Mooncake:
    port = servers.next_port()
    env = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(port)}
    return Mooncake(
        http=servers.http,
        model=servers.model,
        prefill=await start(servers, UPSTREAM, name, servers.prefill, "kv_producer", chunk=chunk, env=env),
        decode=decode,
        wire_bytes=wire_bytes,
        bootstrap=f"http://{PREFILL_HTTP}:{port}",
        bootstrap_for_decode=f"http://{PREFILL_DATA}:{port}",
    )


async def start_nixl(
    servers: Servers, name: str, chunk: Sequence[str], decode: str, wire_bytes: WireBytes
) -> "Resting":
    prefill = await start(servers, NIXL, name, servers.prefill, "kv_producer", chunk=chunk)
    nixl = Nixl(http=servers.http, model=servers.model, prefill=prefill, decode=decode, wire_bytes=wire_bytes)
    both = (name_of_decode(NIXL), name)
    resting = Resting(nixl, [engine for each in both for engine in servers.processes.engines(each)])
    resting.rest()
    return resting


async def start(
    servers: Servers,
    connector: str,
    name: str,
    place: Place,
    role: str,
    *,
    chunk: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    if connector == NIXL:
        env = {
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": DATA_DEVICE,
            "NIXL_FOLDER": str(NIXL_FOLDER),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": place.data_host,
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(servers.next_port()),
        }
    transfer = json.dumps(_CONNECTORS[connector] | {"kv_role": role})
    flags = (EAGER, "--kv-transfer-config", transfer, *chunk)
    return await servers.vllm(name, _TARGETS[connector], place, flags, env=env)


@dataclass(slots=True, eq=False)
class Resting:
    """A subject whose engines are stopped (SIGSTOP) while it is not asked, since each would take a core even then."""

    _subject: Nixl
    _engines: Sequence[int]  # process ids
    _asking: int = 0

    def rest(self) -> None:
        self._signal(signal.SIGSTOP)

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer:
        with self._awake():
            return await self._subject.ask(prompt, max_tokens, times)

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """See `Subject.measure`; that it settles before it begins is time to wake up, too."""
        with self._awake():
            return await self._subject.measure(prompt)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        self._asking += 1
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking:
                self.rest()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._engines:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
