"""A prefill and a decode rank in one process: real workers, real control sockets, in-memory engine, plain memory."""

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.node_info import Fingerprint
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.engine.base import EngineFactory
from baton.kv_connector.handoff.incoming import BlockReservation
from baton.kv_connector.handoff.metadata import DecodeStep, Ending, PrefillStep, Reserved, StartedPrompt, Watched
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.protocol.messages import Rank as RankCoordinates
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.digest import RegionDigests
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sync import HOST_STREAM, DeviceEvent, Record
from tests.support.described import fingerprint
from tests.support.memory_engine import MemoryFabric
from tests.support.plain_memory import plain_caches

SECRET = ClusterSecret(b"a secret for integration tests")
LAYERS, BLOCKS, BLOCK_BYTES, BLOCK_TOKENS = 4, 16, 256, 16
FINGERPRINT = fingerprint(BLOCK_TOKENS)
PATIENCE_S = 10.0


class Memory:
    """The KV cache of one rank: layer by layer, block by block."""

    def __init__(self) -> None:
        self._bytes = (ctypes.c_char * (LAYERS * BLOCKS * BLOCK_BYTES))()
        base = ctypes.addressof(self._bytes)
        self.caches = plain_caches(base, LAYERS, BLOCKS, BLOCK_BYTES, BLOCK_TOKENS)

    def digests(self, blocks: Sequence[int], regions: Sequence[int]) -> bytes:
        """The digests of some blocks, computed as a worker computes them."""
        import torch

        return RegionDigests([torch.frombuffer(self._bytes, dtype=torch.uint8)], self.caches.regions)(blocks, regions)

    def read(self, layer: int, block: int) -> bytes:
        return ctypes.string_at(self._address(layer, block), BLOCK_BYTES)

    def write(self, layer: int, block: int, text: str) -> None:
        """Fill one block of one layer with something that names it."""
        ctypes.memmove(self._address(layer, block), text.encode().ljust(BLOCK_BYTES, b"."), BLOCK_BYTES)

    def _address(self, layer: int, block: int) -> int:
        region = self.caches.regions[layer]
        return region.base_addr + block * region.stride_bytes


class Ranks:
    """One P and one D, started."""

    def __init__(
        self,
        folder: Path,
        *,
        decode_fingerprint: Fingerprint = FINGERPRINT,
        decode_record: Record = lambda: None,
        decode_device: DeviceEvent | None = None,
        decode_enters: Callable[[], None] = lambda: None,
        engines: Callable[[MemoryFabric, str], EngineFactory] = MemoryFabric.factory,
        prefill_secret: ClusterSecret = SECRET,
        decode_secret: ClusterSecret = SECRET,
        **transfer: Any,
    ) -> None:
        defaults: dict[str, Any] = {"beat_interval_s": 0.05, "peer_timeout_s": 3.0, "receive_engines": 1}
        config = ConnectorConfig(
            runtime_dir=folder,
            secret_file=folder / "secret",
            weights="w",
            transfer=TransferConfig(**defaults | transfer),
        )
        self.fabric = MemoryFabric()
        self.source, self.target = Memory(), Memory()
        self.prefill = PrefillWorker(
            config=config,
            secret=prefill_secret,
            introduction=RankDescriptor("P", "prefill", RankCoordinates(), FINGERPRINT, self.source.caches),
            engines=engines(self.fabric, "p"),
            incarnation=11,
            stream=HOST_STREAM,
            digests=lambda *asked: self.source.digests(*asked),  # noqa: PLW0108  # a test may replace it
        )
        self.decode = DecodeWorker(
            config=config,
            secret=decode_secret,
            introduction=RankDescriptor("D", "decode", RankCoordinates(), decode_fingerprint, self.target.caches),
            engines=engines(self.fabric, "d"),
            incarnation=22,
            record=decode_record,
            enter_device=decode_enters,
            digests=lambda *asked: self.target.digests(*asked),  # noqa: PLW0108  # a test may replace it
            device=decode_device,
        )
        self.finished: set[str] = set()
        self.failed: dict[str, str] = {}
        self.closed: list[str] = []
        self.started: set[str] = set()
        self.endings: dict[str, Ending] = {}

    def __enter__(self) -> Self:
        self.prefill.start()
        self.decode.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.decode.stop()
        self.prefill.stop()

    def watch(self, name: str) -> None:
        """D's scheduler has seen the request."""
        self.decode.begin_step(DecodeStep(watched=[Watched(name, f"d-{name}", [self.prefill.address])]))

    def reserve(self, name: str, tokens: int, blocks: Sequence[int], from_token: int = 0) -> None:
        """D's scheduler has allocated blocks."""
        wish = BlockReservation(tokens, from_token, [list(blocks)], f"prompt {name}".encode())
        self.decode.begin_step(DecodeStep(reserved=[Reserved(f"d-{name}", 1, wish)]))

    def ask(self, name: str, tokens: int, blocks: Sequence[int], from_token: int = 0) -> None:
        self.watch(name)
        self.reserve(name, tokens, blocks, from_token)

    def hand_over(self, name: str = "a") -> None:
        """One prompt of two full blocks and a partial one: P's 1, 2 and 5 are to be D's 7, 3 and 4."""
        self.ask(name, 40, [7, 3, 4])
        self.compute(name, tokens=40, blocks=[1, 2, 5], ready=3)

    def compute(self, name: str, *, tokens: int, blocks: Sequence[int], ready: int, first: bool = True) -> None:
        """P runs one step: writes every layer of `blocks`, of which `ready` of the prompt are then complete."""
        prompt = Prompt(tokens, -(-tokens // BLOCK_TOKENS), f"prompt {name}".encode())
        started = [StartedPrompt(name, f"p-{name}", prompt)] if first else []
        self.prefill.begin_step(PrefillStep(started=started, progress=[Progress(f"p-{name}", [list(blocks)], ready)]))
        for layer in range(LAYERS):
            for block in blocks:
                self.source.write(layer, block, f"{name} layer {layer} block {block}")
            self.prefill.kv_issued(f"layer.{layer}")
        self.prefill.end_step()

    def poll(self) -> None:
        """What D's engine does at the end of a step."""
        finished, _ = self.decode.take_results()
        self.finished |= finished
        if report := self.decode.take_report():
            self.failed |= report.failed
            self.closed += report.closed
            self.started |= report.started
            self.endings |= report.endings

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"gave up: {self.decode.snapshot()} {self.prefill.snapshot()}"
            self.poll()
            time.sleep(0.002)

    def arrived(self, pairs: dict[int, int]) -> bool:
        """Whether D's blocks equal P's in every layer, given P's block of each of D's."""
        return all(
            self.target.read(layer, mine) == self.source.read(layer, theirs)
            for layer in range(LAYERS)
            for mine, theirs in pairs.items()
        )


def send_a_block(ranks: Ranks) -> None:
    """Transfer `a` is under way: the first block of three has arrived."""
    ranks.ask("a", 40, [7, 3, 4])
    ranks.compute("a", tokens=40, blocks=[1, 2], ready=1)
    ranks.wait_until(lambda: ranks.arrived({7: 1}))
