"""Digests of KV: which transfers carry them, and what is said about KV that is not what was sent.

The prefill node decides, by its own `kv_verify` and from the transfer's id alone. The decode node checks whatever a
`Commit` carries, so the two cannot disagree.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from baton.kv_connector.errors import ConnectorConfigError

DIGEST_BYTES = 8  # per region

_NAMED = 3  # regions and runs of blocks that a report names before it only counts


@dataclass(frozen=True, slots=True)
class Sampling:
    """Every `every`-th transfer on average; 0: none."""

    every: int

    @classmethod
    def of(cls, kv_verify: str) -> "Sampling":
        """Read the setting; raises `ConnectorConfigError` if it is neither off, full nor sample:N."""
        if kv_verify in ("off", "full"):
            return cls(1 if kv_verify == "full" else 0)
        word, _, number = kv_verify.partition(":")
        if word != "sample" or not number.isdecimal() or int(number) < 1:
            raise ConnectorConfigError(f"transfer.kv_verify={kv_verify!r} is none of off, full, sample:N")
        return cls(int(number))

    def __call__(self, transfer_id: str) -> bool:
        """Whether a transfer is verified; always the same answer for the same id."""
        return self.every > 0 and crc32(transfer_id.encode()) % self.every == 0


def differences(names: Sequence[str], ours: bytes, theirs: bytes) -> list[str]:
    """Return the names of the regions whose digests differ; all of them if the peer counts other regions."""
    if len(ours) != len(theirs):
        return list(names)
    places = (slice(at, at + DIGEST_BYTES) for at in range(0, len(ours), DIGEST_BYTES))
    return [name for name, place in zip(names, places, strict=True) if ours[place] != theirs[place]]


def mismatch(regions: Sequence[str], blocks: Sequence[int]) -> str:
    """Say what does not agree: the regions, and the blocks in which they were compared."""
    return f"the KV that arrived is not the KV that was sent: {_some(regions)} in blocks {_some(runs(blocks))}"


def runs(blocks: Iterable[int]) -> list[str]:
    """Write consecutive block ids as one range, for people: 7, 8, 9, 3 → "7-9", "3"."""
    found: list[list[int]] = []
    for block in blocks:
        if found and found[-1][1] + 1 == block:
            found[-1][1] = block
        else:
            found.append([block, block])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
