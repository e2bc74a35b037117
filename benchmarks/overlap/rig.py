"""The servers that are compared, and how each is asked: from a prefill chunk size to the subjects of one session.

What does not depend on the chunk size runs all the time: the decode nodes and both ends of the raw push. The rest is
started again for each chunk size, on new ports. An idle server takes 1.5 % of its core, so all variants are up at once
and samples can alternate.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Final

import msgspec

from baton.contracts.http import NODE_PATH
from baton.contracts.node_info import NodeInfo
from baton.deploy.forkserver import ForkServer
from benchmarks.overlap import peers
from benchmarks.overlap.figures import NIXL, PLAIN, RAW, TWO, UPSTREAM, Cell, Kv, Measured
from benchmarks.overlap.network import DECODE_DATA, PREFILL_DATA, Network, sent_bytes
from benchmarks.overlap.processes import DECODE_CORE, EAGER, PAIRS, VLLM, Servers, processes
from benchmarks.overlap.session import MeasureError, Session, Subject, measure_cell
from benchmarks.overlap.subjects import Baton, Plain, Raw

RAW_BYTES: Final = 64 << 20  # room for the longest prompt's KV
_PREFILL: Final = "baton.prefill_node.__main__:main"
_DECODE: Final = "baton.decode_node.__main__:main"


class Rig:
    """Servers of one benchmark run. `start`, then `subjects` for each chunk size."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._processes = servers.processes
        self._folder = servers.processes.folder
        os.sched_setaffinity(0, {DECODE_CORE})  # the client and the proxies stand for other machines: not on P's core
        self._per_chunk: list[str] = []
        self._decodes: dict[str, str] = {}
        self._sender_pid = 0
        self._sender: Connection[tuple[str, int, int], float | None] | None = None
        self._target: tuple[str, int] = ("", 0)

    async def start(self, variants: Sequence[str]) -> None:
        """Start what every chunk size shares, which are the decode nodes that the variants need."""
        servers = self._servers
        flags = ("--advertise-host", DECODE_DATA, *servers.secret)
        decode = self._decodes[""] = await servers.vllm("decode", _DECODE, servers.decode, flags)
        for connector in (UPSTREAM, NIXL):
            if connector in variants:
                name = peers.name_of_decode(connector)
                self._decodes[connector] = await peers.start(servers, connector, name, servers.decode, "kv_consumer")
        self._kv = await self._describe(decode)
        await self._start_raw(self._kv.layers)

    async def cells(
        self, cells: Sequence[Cell], subjects: Mapping[str, Subject], session: Session
    ) -> AsyncIterator[Measured]:
        """Warm up, then yield each cell as it is measured."""
        for subject in [*subjects.values()] * 2:  # first passes are slow, and nodes meet for the first time
            with suppress(MeasureError):
                await subject.measure(session.draw(max(cell.tokens for cell in cells)))
        for cell in cells:
            self._servers.network.throttle(cell.link_mbit_s)  # also of the same rate: with an empty queue
            yield await measure_cell(cell, self._kv, subjects, session)

    async def subjects(self, chunk_tokens: int, variants: Sequence[str]) -> dict[str, Subject]:
        """Start the servers of a chunk size, in place of those of the last one, and return what to measure."""
        if self._per_chunk:
            self._processes.stop(*self._per_chunk)
            self._per_chunk = []
        chunk = ("--max-num-batched-tokens", str(chunk_tokens))
        plain = await self._servers.vllm(self._keep("plain"), VLLM, self._servers.prefill, (EAGER, *chunk))
        found: dict[str, Subject] = {
            PLAIN: Plain(http=self._servers.http, model=self._servers.model, url=plain),
            RAW: Raw(push=self._push, bytes_of=self._kv.bytes_of, wire_bytes=self._wire_bytes),
        }
        for variant in variants:
            found[variant] = await self._subject(variant, chunk)
        return found

    async def _subject(self, variant: str, chunk: Sequence[str]) -> Subject:
        if variant == TWO:
            return await self._two(chunk)
        if variant not in (UPSTREAM, NIXL):
            return await self._baton(variant, chunk)
        start = peers.start_mooncake if variant == UPSTREAM else peers.start_nixl
        return await start(self._servers, self._keep(variant), chunk, self._decodes[variant], self._wire_bytes)

    async def _baton(self, layer_sync: str, chunk: Sequence[str]) -> Baton:
        servers = self._servers
        flags = (*servers.secret, "--advertise-host", PREFILL_DATA, "--layer-sync", layer_sync, *chunk)
        prefill = await servers.vllm(self._keep(layer_sync), _PREFILL, servers.prefill, flags)
        nodes = ("--prefill", prefill, "--decode", self._decodes[""])
        proxy = await servers.proxy(self._keep(f"proxy-{layer_sync}"), (*PAIRS, *nodes))
        return Baton(
            http=servers.http,
            model=servers.model,
            proxy=proxy,
            prefill=prefill,
            token=servers.token,
            wire_bytes=self._wire_bytes,
        )

    async def _two(self, chunk: Sequence[str]) -> Plain:
        """Put two decode nodes, which without a prefill node compute prompts as vLLM does, behind a proxy; a core each."""
        nodes: list[str] = []
        for at, place in enumerate((self._servers.prefill, self._servers.decode)):
            flags = ("--advertise-host", place.data_host, *self._servers.secret, *chunk)
            nodes += ("--decode", await self._servers.vllm(self._keep(f"two-{at}"), _DECODE, place, flags))
        url = await self._servers.proxy(self._keep("proxy-two"), nodes)
        return Plain(http=self._servers.http, model=self._servers.model, url=url)

    async def _start_raw(self, copies: int) -> None:
        ends = {"raw-receiver": (self._servers.decode, {}), "raw-sender": (self._servers.prefill, {"copies": copies})}
        for name, (place, more) in ends.items():
            path = self._folder / name
            path.unlink(missing_ok=True)  # of an earlier run that kept its logs here
            kwargs = {"path": str(path), "host": place.data_host, "size": RAW_BYTES, **more}
            self._processes.start(name, f"benchmarks.overlap.targets:{name.replace('-', '_')}", kwargs, place)
            await self._processes.wait_for_file(name, path)
        self._sender_pid = self._processes.pid("raw-sender")
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
        headers = {"Authorization": f"Bearer {self._servers.token}"}
        async with self._servers.http.get(url + NODE_PATH, headers=headers) as response:
            info = msgspec.convert(await response.json(), NodeInfo)
        assert info.fingerprint is not None  # the node answers 200 on /health, so its KV cache is there
        return Kv(
            layers=len({region.layer for region in info.regions}),
            block_tokens=info.fingerprint.block_size_tokens,
            block_bytes=sum(region.block_bytes for region in info.regions),
        )

    def _keep(self, variant: str) -> str:
        """Name a server of this chunk size; the port after the last one tells it from that of another."""
        name = f"{variant}-{self._servers.next_port()}"
        self._per_chunk.append(name)
        return name


@asynccontextmanager
async def put_up(
    network: Network, forkserver: ForkServer, folder: Path, *, pinned: bool = True, request_timeout_s: float
) -> AsyncIterator[Rig]:
    async with processes(forkserver, folder, timeout_s=request_timeout_s) as made:
        yield Rig(Servers(network, made, pinned=pinned))
