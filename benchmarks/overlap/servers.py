"""How a server of the benchmark is started: on a port of its own, in its place, quiet, and waited for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from baton.contracts.secret import generate_secret, read_secret
from benchmarks.harness import QUIET, RARE_PROBES
from benchmarks.overlap.network import DECODE_DATA, DECODE_HTTP, PREFILL_DATA, PREFILL_HTTP, Network
from benchmarks.overlap.processes import Place, Processes, free_port

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
        self._port = FIRST_PORT
        self._secret_file = folder / "secret"
        self._secret_file.write_text(generate_secret())
        self.model = str(model)
        self.token = read_secret(self._secret_file).node_token()
        self.prefill = Place(netns=network.prefill, core=PREFILL_CORE, pinned=pinned, data_host=PREFILL_DATA)
        self.decode = Place(netns=network.decode, core=DECODE_CORE, pinned=pinned, data_host=DECODE_DATA)

    @property
    def secret(self) -> tuple[str, str]:
        """The flag that names the secret's file."""
        return ("--secret-file", str(self._secret_file))

    def next_port(self) -> int:
        """Return a port that no other server has."""
        self._port += 1
        return self._port

    async def vllm(
        self,
        name: str,
        target: str,
        place: Place,
        flags: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Start a server that takes vLLM's flags; return its URL once it is healthy.

        Raises:
            RigError: it did not come up.
        """
        port = self.next_port()
        argv = ["--model", self.model, "--port", str(port), *_COMMON, *QUIET, *flags]
        self._processes.start(name, target, {"argv": argv}, place, env)
        url = f"http://{self.host_of(place)}:{port}"
        await self._processes.wait_for_url(name, url + "/health")
        self._processes.pin_engine(name)
        return url

    async def proxy(self, name: str, flags: Sequence[str]) -> str:
        """Start a proxy beside the client, which both stand for other machines; return its URL once it is ready.

        Raises:
            RigError: it did not come up.
        """
        port = free_port()
        argv = ["--port", str(port), *self.secret, *flags]
        self._processes.start(name, "baton.proxy.__main__:main", {"argv": argv}, Place(core=DECODE_CORE), RARE_PROBES)
        url = f"http://127.0.0.1:{port}"
        await self._processes.wait_for_url(name, url + "/ready")
        return url

    def host_of(self, place: Place) -> str:
        """Return a place's address as the client reaches it."""
        return PREFILL_HTTP if place is self.prefill else DECODE_HTTP
