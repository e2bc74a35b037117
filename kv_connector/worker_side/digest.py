"""Digests over the KV of some blocks, one per region, to prove that what D holds is what P computed.

A block's payload is read as 32-bit words x[j], sign-extended to 64 bits, and weighed on the device that holds it:

    sum of a block     h[b] = Σ_j w[j] · x[j]                 mod 2^64, w[j] odd
    digest of a region D    = Σ_b mix(h[b] + position(b))     mod 2^64, mix a permutation of 64-bit numbers

What it detects:

- *A change within one word*, so any flipped bit or byte, *with certainty*: the change d of the word is not 0 and below
  2^32 in size, an odd w[j] has an inverse mod 2^64, so h[b] changes; so does mix of it, and D, since no other term
  does.
- *Any other change of one block*, made without looking at the weights, escapes its h[b] with a probability of at most
  2^-32: of the words that change take the one whose d has the fewest factors of two, at most 31. Its weight has 63 free
  bits, and only those with Σ w·d = 0 mod 2^64 miss, at most one in 2^(63-31).
- *Changes of several blocks, and blocks that changed places*: each block's term takes on a value that has nothing to do
  with the former one, so terms cancel each other with a probability of about 2^-64.

It is no defence against an attacker who knows the weights: they are the same everywhere, so that both nodes agree.

Additions and products of 64-bit integers wrap around alike on CPU, CUDA and NPU, and a sum does not depend on its
order. Whole blocks travel, hence whole blocks are compared, the unused tail of the last one included.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from baton.kv_connector.errors import LayoutError
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.protocol.verification import DIGEST_BYTES

if TYPE_CHECKING:
    import torch

# Block ids in prompt order, numbers of regions → `DIGEST_BYTES` per region, in the order asked for.
BlockDigests = Callable[[Sequence[int], Sequence[int]], bytes]

_Numbers = npt.NDArray[np.uint64]

_HOST_WORDS = 16_384  # weighed at once on a CPU: stays in its cache, and torch starts no further threads for so few
_DEVICE_WORDS = 1 << 24  # on an accelerator: few kernels, at 128 MiB of temporary memory


class RegionDigests:
    """Computes the digests of blocks of one worker's KV, on the device that holds it. For one thread."""

    def __init__(self, kv_caches: "Iterable[torch.Tensor]", regions: Sequence[Region]) -> None:
        """Find the regions in vLLM's tensors; raises `LayoutError` for one that lies in none of them."""
        storages = [tensor.untyped_storage() for tensor in kv_caches]
        self._views = [_view(storages, region) for region in regions]
        self._device = self._views[0].elements.device
        self._words = _HOST_WORDS if self._device.type == "cpu" else _DEVICE_WORDS
        self._weights: dict[int, torch.Tensor] = {}  # by length
        self._stream: Callable[[], AbstractContextManager[object]] | None = None

    def __call__(self, blocks: Sequence[int], regions: Sequence[int]) -> bytes:
        """Return the digests of `blocks` in some regions, which are given by number; wait until they are there."""
        import torch

        self._stream = self._stream or own_stream(self._device)
        with torch.inference_mode(), self._stream():
            ids = torch.tensor(blocks, dtype=torch.int64, device=self._device)
            buffer = torch.empty(self._words, dtype=torch.int64, device=self._device)
            sums = torch.stack([self._sums(view, ids, buffer) for view in [self._views[i] for i in regions]])
            host = sums.cpu()  # waits for this stream alone
        return b"".join(_digest(row) for row in host.numpy().view(np.uint64))

    def _sums(self, view: "_View", ids: "torch.Tensor", buffer: "torch.Tensor") -> "torch.Tensor":
        """Return h[b] of each block of one region, shape `[len(ids)]`, a piece of the blocks at a time."""
        import torch

        elements, word = view
        per_word = word.itemsize // elements.element_size()
        weights = self._weights_for(elements.shape[1] // per_word)
        pieces = torch.split(ids, max(1, len(buffer) // len(weights)))
        total = torch.zeros(len(ids), dtype=torch.int64, device=self._device)
        for first in range(0, len(weights), len(buffer)):
            some = weights[first : first + len(buffer)]
            columns = elements[:, first * per_word : (first + len(some)) * per_word]
            sums = []
            for piece in pieces:
                words = columns.index_select(0, piece).view(word)
                weighed = buffer[: words.numel()].view(words.shape)
                sums.append(weighed.copy_(words).mul_(some).sum(1))
            total += torch.cat(sums)
        return total

    def _weights_for(self, length: int) -> "torch.Tensor":
        import torch

        if length not in self._weights:
            odd = _random(np.arange(length, dtype=np.uint64)) | np.uint64(1)
            self._weights[length] = torch.from_numpy(odd.view(np.int64)).to(self._device)
        return self._weights[length]


def own_stream(device: "torch.device") -> Callable[[], AbstractContextManager[object]]:
    """Make a stream, and return what lets the calling thread issue to it; a CPU has none and needs none."""
    if device.type == "cpu":
        return nullcontext
    import torch

    module = torch.get_device_module(device)
    stream = module.Stream(device=device)
    return lambda: module.stream(stream)


class _View(NamedTuple):
    """One region as a tensor of `[num_blocks, …]`; nothing is copied."""

    elements: "torch.Tensor"  # words, or bytes where words would not be aligned
    word: "torch.dtype"


def _view(storages: "Sequence[torch.UntypedStorage]", region: Region) -> _View:
    import torch

    storage = next((s for s in storages if s.data_ptr() <= region.base_addr < s.data_ptr() + s.nbytes()), None)
    if storage is None or region.end_addr > storage.data_ptr() + storage.nbytes():
        raise LayoutError(f"{region.name} lies in none of the KV tensors")
    word = _word_type(region.block_bytes)
    offset = region.base_addr - storage.data_ptr()
    kind = torch.uint8 if (offset | region.stride_bytes) % word.itemsize else word
    size = (region.num_blocks, region.block_bytes // kind.itemsize)
    strides = (region.stride_bytes // kind.itemsize, 1)
    elements = torch.empty(0, dtype=kind, device=storage.device).set_(storage, offset // kind.itemsize, size, strides)
    return _View(elements, word)


def _word_type(block_bytes: int) -> "torch.dtype":
    """The widest word, of at most 32 bits, that divides a block; both nodes have blocks of the same size."""
    import torch

    words: Mapping[int, torch.dtype] = {0: torch.int32, 2: torch.int16}
    return words.get(block_bytes % 4, torch.int8)


def _digest(sums: _Numbers) -> bytes:
    positions = _random(np.arange(len(sums), dtype=np.uint64))
    total = _mix(sums + positions).sum(dtype=np.uint64)
    return int(total).to_bytes(DIGEST_BYTES, "little")


def _random(numbers: _Numbers) -> _Numbers:
    """The splitmix64 sequence: numbers without a pattern, the same on every machine and in every version."""
    return _mix((numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))


def _mix(numbers: _Numbers) -> _Numbers:
    """The finaliser of splitmix64, a permutation of the 64-bit numbers."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
