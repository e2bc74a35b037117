"""How a server of the benchmark is started: on a port of its own, in its place, quiet, and waited for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from baton.contracts.secret import generate_secret, read_secret
from benchmarks.harness import QUIET
from benchmarks.overlap.network import DECODE_DATA, DECODE_HTTP, PREFILL_DATA, PREFILL_HTTP, Network
from benchmarks.overlap.processes import Place, Processes

PREFILL_CORE: Final = 0
DECODE_CORE: Final = 1
KV_CACHE_BYTES: Final = 256 << 20
FIRST_PORT: Final = 8100  # in the namespaces every port is free
EAGER: Final = "--enforce-eager"  # as our nodes choose on a CPU
_COMMON: Final = ("--host", "0.0.0.0", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES))  # noqa: S104  # namespaces


class Servers:
    """Starts vLLM servers, Baton's nodes and its proxies."""

    def __init__(self, network: Network, processes: Processes, folder: Path, model: Path, *, pinned: bool) -> None:
        """Make it; `pinned`: a server and all its threads have one core, else its model thread has one and the rest any."""
        self._processes = processes
        self.http = processes.http
        self._port = FIRST_PORT
        self._secret_file = folder / "secret"
        self._secret_file.write_text(generate_secret())
        self.model = str(model)
        self.token = read_secret(self._secret_file).node_token()
        self.prefill = Place(netns=network.prefill, core=PREFILL_CORE, pinned=pinned, data_host=PREFILL_DATA)
        self.decode = Place(netns=network.decode, core=DECODE_CORE, pinned=pinned, data_host=DECODE_DATA)

    @property
    def secret(self) -> tuple[str, str]:
        return ("--secret-file", str(self._secret_file))

    def next_port(self) -> int:
        self._port += 1
        return self._port

    async def vllm(
        self, name: str, target: str, place: Place, flags: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> str:
        """Start a server that takes vLLM's flags; return its URL once it is healthy, as the client reaches it."""
        port, host = self.next_port(), PREFILL_HTTP if place is self.prefill else DECODE_HTTP
        argv = ["--model", self.model, "--port", str(port), *_COMMON, *QUIET, *flags]
        url = await self._processes.serve(name, target, argv, place, f"http://{host}:{port}", env=env)
        self._processes.pin_engine(name)
        return url

    async def proxy(self, name: str, flags: Sequence[str]) -> str:
        """Start a proxy beside the client, which both stand for other machines; return its URL once it is ready."""
        return await self._processes.proxy(name, (*self.secret, *flags), Place(core=DECODE_CORE))
