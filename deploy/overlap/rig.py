"""The servers that are compared, and how each is asked: from a prefill chunk size to the subjects of one session.

What does not depend on the chunk size runs all the time: the decode nodes and both ends of the raw push. The rest is
started anew for each chunk size, on new ports. An idle server takes 1.5 % of its core, so all variants are up at once
and samples can alternate.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from contracts.http import NODE_PATH
from contracts.node_info import NodeInfo
from contracts.secret import generate_secret, read_secret
from deploy.overlap.network import DECODE_DATA, DECODE_HTTP, PREFILL_DATA, PREFILL_HTTP, Network, sent_bytes
from deploy.overlap.processes import Place, Processes, free_port
from loadtest.overlap.figures import PLAIN, RAW, UPSTREAM, expected_kv_bytes
from loadtest.overlap.session import MeasureError, Subject
from loadtest.overlap.subjects import Baton, Plain, Raw, Upstream

PREFILL_CORE: Final = 0
DECODE_CORE: Final = 1
KV_CACHE_BYTES: Final = 256 << 20
RAW_BYTES: Final = 64 << 20  # room for the longest prompt's KV
FIRST_PORT: Final = 8100  # in the namespaces every port is free
DECODE_PORT: Final = 8200
UPSTREAM_DECODE_PORT: Final = 8201
COMMON: Final = ("--host", "0.0.0.0", "--kv-cache-memory-bytes", str(KV_CACHE_BYTES))  # noqa: S104  # namespaces
QUIET: Final = ("--uvicorn-log-level", "error", "--disable-uvicorn-access-log")
EAGER: Final = "--enforce-eager"  # as our nodes choose on a CPU
_VLLM: Final = "deploy.overlap.targets:vllm_server"
_MOONCAKE: Final = "deploy.overlap.targets:vllm_with_mooncake"
_SECONDS_BETWEEN_PROBES: Final = "10"  # the proxies' health checks cost the nodes a millisecond each


@dataclass(frozen=True, slots=True, kw_only=True)
class Kv:
    """How much KV a prompt makes."""

    layers: int
    block_tokens: int
    block_bytes: int  # of all regions together

    def bytes_of(self, tokens: int) -> int:
        """Return the KV bytes of a prompt."""
        return expected_kv_bytes(tokens, self.block_tokens, self.block_bytes)


class Rig:
    """Servers of one benchmark run. `start`, then `subjects` for each chunk size."""

    def __init__(
        self,
        *,
        network: Network,
        processes: Processes,
        http: aiohttp.ClientSession,
        folder: Path,
        model: Path,
        pinned: bool,
    ) -> None:
        """Make it; `pinned`: a node and all its threads have one core, else its model thread has one and the rest any."""
        self._processes = processes
        self._http = http
        self._folder = folder
        self._model = str(model)
        self._secret_file = folder / "secret"
        self._secret_file.write_text(generate_secret())
        self._token = read_secret(self._secret_file).node_token()
        self._prefill = Place(netns=network.prefill, core=PREFILL_CORE, pinned=pinned, data_host=PREFILL_DATA)
        self._decode = Place(netns=network.decode, core=DECODE_CORE, pinned=pinned, data_host=DECODE_DATA)
        os.sched_setaffinity(0, {DECODE_CORE})  # the client and the proxies stand for other machines: not on P's core
        self._per_chunk: list[str] = []
        self._port = FIRST_PORT
        self._sender_pid = 0
        self._sender: Connection[tuple[str, int, int], float | None] | None = None
        self._target: tuple[str, int] = ("", 0)

    async def start(self, *, upstream: bool) -> Kv:
        """Start what every chunk size shares; `upstream`: vLLM's own decode node too."""
        flags = ["--advertise-host", DECODE_DATA, "--secret-file", str(self._secret_file)]
        self._processes.start("decode", "decode_node.__main__:main", self._argv(DECODE_PORT, *flags), self._decode)
        if upstream:
            self._start_upstream("mooncake-decode", self._decode, port=UPSTREAM_DECODE_PORT, kv_role="kv_consumer")
            await self._ready("mooncake-decode", DECODE_HTTP, UPSTREAM_DECODE_PORT)
        kv = await self._describe(await self._ready("decode", DECODE_HTTP, DECODE_PORT))
        await self._start_raw(kv.layers)
        return kv

    async def subjects(self, chunk_tokens: int, variants: Sequence[str], kv: Kv) -> dict[str, Subject]:
        """Start the servers of a chunk size, in place of those of the last one, and return what to measure."""
        if self._per_chunk:
            self._processes.stop(*self._per_chunk)
            self._per_chunk = []
        chunk = ("--max-num-batched-tokens", str(chunk_tokens))
        found: dict[str, Subject] = {
            PLAIN: Plain(http=self._http, model=self._model, url=await self._plain(chunk)),
            RAW: Raw(push=self._push, bytes_of=kv.bytes_of, wire_bytes=self._wire_bytes),
        }
        for variant in variants:
            found[variant] = await (self._upstream(chunk) if variant == UPSTREAM else self._baton(variant, chunk))
        return found

    async def _plain(self, chunk: Sequence[str]) -> str:
        port = self._next_port()
        name = self._keep(f"plain-{port}")
        self._processes.start(name, _VLLM, self._argv(port, EAGER, *chunk), self._prefill)
        return await self._ready(name, PREFILL_HTTP, port)

    async def _baton(self, layer_sync: str, chunk: Sequence[str]) -> Baton:
        port, proxy_port = self._next_port(), free_port()
        name, secret = self._keep(f"{layer_sync}-{port}"), ("--secret-file", str(self._secret_file))
        flags = [*secret, "--advertise-host", PREFILL_DATA, "--layer-sync", layer_sync, *chunk]
        self._processes.start(name, "prefill_node.__main__:main", self._argv(port, *flags), self._prefill)
        prefill = await self._ready(name, PREFILL_HTTP, port)
        nodes = ("--prefill", prefill, "--decode", f"http://{DECODE_HTTP}:{DECODE_PORT}")
        argv = {"argv": ["--port", str(proxy_port), "--when-no-prefill", "refuse", *secret, *nodes]}
        env = {"BATON_PROXY_PROBE_INTERVAL_S": _SECONDS_BETWEEN_PROBES}
        place = Place(core=DECODE_CORE)
        self._processes.start(self._keep(f"proxy-{port}"), "proxy.__main__:main", argv, place, env)
        proxy = f"http://127.0.0.1:{proxy_port}"
        await self._processes.wait_for_url(f"proxy-{port}", proxy + "/ready")
        return Baton(
            http=self._http,
            model=self._model,
            proxy=proxy,
            prefill=prefill,
            token=self._token,
            wire_bytes=self._wire_bytes,
        )

    async def _upstream(self, chunk: Sequence[str]) -> Upstream:
        port, bootstrap = self._next_port(), self._next_port()
        name = self._keep(f"mooncake-{port}")
        self._start_upstream(name, self._prefill, port=port, kv_role="kv_producer", flags=chunk, bootstrap=bootstrap)
        return Upstream(
            http=self._http,
            model=self._model,
            prefill=await self._ready(name, PREFILL_HTTP, port),
            decode=f"http://{DECODE_HTTP}:{UPSTREAM_DECODE_PORT}",
            bootstrap=f"http://{PREFILL_HTTP}:{bootstrap}",
            bootstrap_for_decode=f"http://{PREFILL_DATA}:{bootstrap}",
            wire_bytes=self._wire_bytes,
        )

    def _start_upstream(
        self, name: str, place: Place, *, port: int, kv_role: str, flags: Sequence[str] = (), bootstrap: int = 0
    ) -> None:
        connector = {"kv_connector": "MooncakeConnector", "kv_role": kv_role}
        extra = {"kv_connector_extra_config": {"mooncake_protocol": "tcp"}}
        argv = self._argv(port, EAGER, "--kv-transfer-config", json.dumps(connector | extra), *flags)
        env = {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(bootstrap)} if bootstrap else {}
        self._processes.start(name, _MOONCAKE, argv, place, env)

    async def _start_raw(self, copies: int) -> None:
        ends = {"raw-receiver": (self._decode, {}), "raw-sender": (self._prefill, {"copies": copies})}
        for name, (place, more) in ends.items():
            path = self._folder / name
            path.unlink(missing_ok=True)  # of an earlier run that kept its logs here
            kwargs = {"path": str(path), "host": place.data_host, "size": RAW_BYTES, **more}
            pid = self._processes.start(name, f"deploy.overlap.targets:{name.replace('-', '_')}", kwargs, place)
            await self._processes.wait_for_file(name, path)
            self._sender_pid = pid  # that of the last one
        with Client(str(self._folder / "raw-receiver")) as receiver:
            self._target = receiver.recv()
        self._sender = Client(str(self._folder / "raw-sender"))

    async def _push(self, size: int) -> float:
        assert self._sender is not None
        self._sender.send((*self._target, size))
        seconds = await asyncio.to_thread(self._sender.recv)
        if seconds is None:
            raise MeasureError("Mooncake failed the raw push")
        return seconds

    def _wire_bytes(self) -> int:
        return sent_bytes(Path(f"/proc/{self._sender_pid}/net/dev").read_text())

    async def _describe(self, url: str) -> Kv:
        async with self._http.get(url + NODE_PATH, headers={"Authorization": f"Bearer {self._token}"}) as response:
            info = msgspec.convert(await response.json(), NodeInfo)
        assert info.fingerprint is not None  # the node answers 200 on /health, so its KV cache is there
        return Kv(
            layers=len({region.layer for region in info.regions}),
            block_tokens=info.fingerprint.block_size_tokens,
            block_bytes=sum(region.block_bytes for region in info.regions),
        )

    async def _ready(self, name: str, host: str, port: int) -> str:
        url = f"http://{host}:{port}"
        await self._processes.wait_for_url(name, url + "/health")
        self._processes.pin_engine(name)
        return url

    def _argv(self, port: int, *flags: str) -> dict[str, Any]:
        return {"argv": ["--model", self._model, "--port", str(port), *COMMON, *QUIET, *flags]}

    def _next_port(self) -> int:
        self._port += 1
        return self._port

    def _keep(self, name: str) -> str:
        self._per_chunk.append(name)
        return name
