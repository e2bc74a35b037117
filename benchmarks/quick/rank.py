"""A prefill rank as it is in production, opposite a decode rank that is only played.

The worker, its state machine, sender thread and control thread are the real ones, and so is the transfer engine. The
decode rank's part is a few messages, handed to the worker as its control thread would, and memory that some other
process offers: so nothing of it uses the CPU of the process that is measured.
"""

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.node_info import Fingerprint
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.engine.base import EngineFactory
from baton.kv_connector.handoff.metadata import Progress, StartedPrompt
from baton.kv_connector.handoff.outgoing import Prompt
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.protocol.messages import Body, Hello, Message, Rank, Reserve, encode
from baton.kv_connector.worker_side.caches import Caches
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from baton.kv_connector.worker_side.sync import HOST_STREAM

BLOCK_TOKENS: Final = 16
PATIENCE_S: Final = 30.0
POLL_S: Final = 0.005
_PREFILL, _DECODE = 11, 22  # incarnations
_PEER: Final = ("accept", b"played")  # where answers go: no process reads them
_FINGERPRINT: Final = Fingerprint(
    weights="w",
    dtype="d",
    kv_cache_dtype="k",
    quantization="q",
    rope="r",
    attention="a",
    block_size_tokens=BLOCK_TOKENS,
)


class RankError(Exception):
    """A transfer did not end in a commit; the message says what the worker saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """How a KV cache is laid out: layer by layer, without gaps."""

    layers: int
    blocks: int  # of the pool
    block_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.layers * self.blocks * self.block_bytes

    def regions(self, base_addr: int) -> tuple[Region, ...]:
        size = self.blocks * self.block_bytes
        return tuple(
            Region(
                name=f"model.layers.{i}.self_attn.attn",
                layer=i,
                base_addr=base_addr + i * size,
                block_bytes=self.block_bytes,
                stride_bytes=self.block_bytes,
                num_blocks=self.blocks,
            )
            for i in range(self.layers)
        )


class Target(NamedTuple):
    """Memory of another process that may be written to."""

    session: str
    address: int


class PlayedTransfer(NamedTuple):
    """One prompt and where it goes: block i of the prompt is `source[i]` here and `destination[i]` there."""

    name: str
    source: Sequence[int]
    destination: Sequence[int]

    @property
    def prompt(self) -> Prompt:
        """The prompt fills its last block."""
        return Prompt(len(self.source) * BLOCK_TOKENS, len(self.source), self.name.encode())

    def started(self) -> StartedPrompt:
        return StartedPrompt(self.name, self.name, self.prompt)

    def progress(self, first: int, stop: int) -> Progress:
        """What the scheduler says when a step computes blocks `[first, stop)`."""
        return Progress(self.name, [list(self.source[first:stop])], stop)


class PrefillRank:
    """A started prefill worker that knows one decode rank."""

    def __init__(self, *, shape: KvShape, address: int, engines: EngineFactory, target: Target, folder: Path) -> None:
        """`address` is that of our KV cache."""
        self._target = target
        self._sequence = itertools.count(1)
        caches = Caches(
            layer_of={region.name: region.layer for region in shape.regions(address)},
            regions=shape.regions(address),
            num_blocks=shape.blocks,
            block_tokens=BLOCK_TOKENS,
        )
        self.layer_names = list(caches.layer_of)
        patient = TransferConfig(
            layer_sync="event", peer_timeout_s=3600.0, transfer_timeout_s=3600.0, orphan_timeout_s=3600.0
        )
        self.worker = PrefillWorker(
            config=ConnectorConfig(
                runtime_dir=folder,
                secret_file=folder / "secret",
                weights="w",
                transfer=patient,
            ),
            secret=ClusterSecret(os.urandom(32)),
            introduction=RankDescriptor("P", "prefill", Rank(), _FINGERPRINT, caches),
            engines=engines,
            incarnation=_PREFILL,
            stream=HOST_STREAM,
            digests=lambda *_: b"",  # `kv_verify` is off
        )
        self.worker.start()
        regions = [region.to_info() for region in shape.regions(target.address)]
        self._say(0, Hello(node="D", rank=Rank(), fingerprint=_FINGERPRINT, regions=regions))

    def stop(self) -> None:
        self.worker.stop()

    def reserve(self, transfer: PlayedTransfer) -> None:
        self._say(
            _PREFILL,
            Reserve(
                transfer_id=transfer.name,
                epoch=1,
                engine=self._target.session,
                tokens=transfer.prompt.tokens,
                from_token=0,
                blocks=[list(transfer.destination)],
                prompt_hash=transfer.prompt.prompt_hash,
            ),
        )

    @property
    def committed(self) -> int:
        committed: int = self.worker.snapshot()["totals"]["committed"]
        return committed

    def wait_for_commits(self, count: int) -> dict[str, Any]:
        """Wait for so many commits; return the worker's snapshot. Raises `RankError`: one failed, or is late."""
        give_up = time.monotonic() + PATIENCE_S
        while True:
            snapshot = self.worker.snapshot()
            if snapshot["totals"]["committed"] >= count:
                return snapshot
            if snapshot["failures"] or time.monotonic() > give_up:
                raise RankError(f"{snapshot['totals']['committed']} of {count} transfers: {snapshot}")
            time.sleep(POLL_S)

    def _say(self, receiver: int, body: Body) -> None:
        self.worker.on_payload(_PEER, encode(Message(_DECODE, receiver, next(self._sequence), body)))
