"""What both processes have in common."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baton.contracts.configuration.schema import TransferConfig
from baton.contracts.kv_transfer import Role
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.protocol.messages import Rank
from baton.kv_connector.worker_side.rank_descriptor import RankDescriptor
from tests.support.described import fingerprint
from tests.support.plain_memory import plain_caches

SECRET = ClusterSecret(b"a secret for late writes")
LAYERS, BLOCKS, BLOCK_BYTES, BLOCK_TOKENS = 2, 81, 512 * 1024, 16
PROMPT_BLOCKS = 32  # 32 MiB to push
SENT, RECOMPUTED, SUCCESSOR = 0x11, 0xAA, 0xBB  # what fills a block, by who wrote it
FINGERPRINT = fingerprint(BLOCK_TOKENS)


def config(folder: Path, host: str) -> ConnectorConfig:
    """Settings with short time-outs, and push calls that hold a whole prompt."""
    return ConnectorConfig(
        runtime_dir=folder,
        secret_file=folder / "secret",
        weights="w",
        control_host=host,
        advertise_host=host,
        transfer=TransferConfig(
            beat_interval_s=0.1,
            peer_timeout_s=1.5,
            receive_engines=1,
            push_max_bytes=1 << 30,
            push_max_descriptors=4096,
        ),
    )


class Memory:
    """The KV cache of one node: `[layers, blocks, bytes]`."""

    def __init__(self, fill: int = 0) -> None:
        self.content: npt.NDArray[np.uint8] = np.full((LAYERS, BLOCKS, BLOCK_BYTES), fill, np.uint8)
        base = self.content.ctypes.data
        self.caches = plain_caches(base, LAYERS, BLOCKS, BLOCK_BYTES, BLOCK_TOKENS)

    def fill(self, blocks: Sequence[int], value: int) -> None:
        """Write some blocks, as their new owner."""
        self.content[:, list(blocks)] = value

    def count(self, blocks: Sequence[int], value: int) -> int:
        """How many bytes of some blocks hold `value`."""
        return sum(int(np.count_nonzero(self.content[:, block] == value)) for block in blocks)


def introduction(name: str, role: Role, memory: Memory) -> RankDescriptor:
    """How a node introduces itself."""
    return RankDescriptor(name, role, Rank(), FINGERPRINT, memory.caches)


def no_digests(blocks: Sequence[int], regions: Sequence[int]) -> bytes:
    """Nothing is verified here."""
    raise NotImplementedError(blocks, regions)
