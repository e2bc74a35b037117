"""vLLM's own KV cache manager, and the memory behind it, for layouts with windows, several groups and states."""

import ctypes
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from baton.contracts.kv_transfer import SINGLE, Grids, Role, TransferParams, sign
from baton.kv_connector.layout.groups import CACHED_STATES, STATE, Group
from baton.kv_connector.layout.regions import Region
from baton.kv_connector.layout.windows import OF_A_STATE, window_of_chunk
from baton.kv_connector.worker_side.caches import Caches
from baton.kv_connector.worker_side.digest import RegionDigests
from tests.support.async_schedules.wire import address_of
from tests.support.ranks import SECRET

BLOCK_TOKENS, TOKEN_BYTES = 128, 16
BLOCK_BYTES = BLOCK_TOKENS * TOKEN_BYTES
MODEL_TOKENS = 4096
STATE_BYTES = 3 * TOKEN_BYTES  # the rest of a state's block is filled up


class Layout(NamedTuple):
    """Groups of layers, of which the first ones of each group lie in the same memory, and so on."""

    windows: Sequence[int]  # by group; 0: none, `OF_A_STATE`: its layers are recurrent, negative: a chunk
    layers_each: int
    blocks: int  # in the pool
    places: Sequence[int] = ()  # by group: how many times as long its blocks are; none: all are as long
    caches_states: bool = False  # the prefix cache is on, with recurrent layers
    drafts: int = 0  # tokens that are drafted a step: so many blocks more in the table of a state
    leaves_checkpoints: bool = False  # a state at the last end of a block within a chunk, as Mamba2's kernels do
    grids: Grids = SINGLE  # tensor-parallel ranks of P and of D

    @property
    def groups(self) -> list[Group]:
        """As our scheduler sides know them."""
        return [
            (CACHED_STATES if self.caches_states else STATE._replace(drafts=self.drafts))
            if window == OF_A_STATE
            else Group(window, places=self.places_of(group))
            for group, window in enumerate(self.windows)
        ]

    def places_of(self, group: int) -> int:
        """How many scheduler blocks of tokens a block of a group has."""
        return self.places[group] if self.places else 1

    def tokens_of(self, group: int) -> int:
        """Tokens of a block of a group; a single state's is as long as a request may be."""
        is_single = self.windows[group] == OF_A_STATE and not self.caches_states
        return MODEL_TOKENS if is_single else BLOCK_TOKENS * self.places_of(group)

    @property
    def stride_bytes(self) -> int:
        """From one block to the next, whichever group it is given to."""
        return BLOCK_BYTES * max(self.places, default=1)

    @property
    def block_tokens(self) -> int:
        """Tokens of a scheduler block: those of the layers with attention, where there are any."""
        return min(map(self.tokens_of, range(len(self.windows))))

    @property
    def has_cache(self) -> bool:
        """Whether vLLM has a prefix cache."""
        return self.caches_states or OF_A_STATE not in self.windows

    def is_state(self, layer: int) -> bool:
        """Whether a layer is recurrent."""
        return self.windows[self.group_of(layer)] == OF_A_STATE

    @property
    def num_layers(self) -> int:
        return len(self.windows) * self.layers_each

    def group_of(self, layer: int) -> int:
        """Layers of different groups alternate, as in the models."""
        return layer % len(self.windows)

    def kv_cache_config(self) -> KVCacheConfig:
        """As vLLM's scheduler gets it."""
        groups = [
            KVCacheGroupSpec(
                [f"layer.{layer}" for layer in range(self.num_layers) if self.group_of(layer) == group],
                self._spec(window, self.tokens_of(group)),
            )
            for group, window in enumerate(self.windows)
        ]
        return KVCacheConfig(num_blocks=self.blocks, kv_cache_tensors=[], kv_cache_groups=groups)

    def manager(self) -> KVCacheManager:
        """Make vLLM's manager of such a cache."""
        init_none_hash(sha256)
        return KVCacheManager(
            self.kv_cache_config(),
            max_model_len=MODEL_TOKENS,
            scheduler_block_size=max(map(self.tokens_of, range(len(self.windows)))),
            hash_block_size=BLOCK_TOKENS if self.has_cache else MODEL_TOKENS,
            enable_caching=self.has_cache,
        )

    def _spec(self, window: int, tokens: int) -> KVCacheSpec:
        if window == OF_A_STATE:
            return MambaSpec(
                block_size=tokens,
                shapes=((STATE_BYTES // 4,),),
                dtypes=(torch.float32,),
                mamba_cache_mode="align" if self.caches_states else "none",
                num_speculative_blocks=self.drafts,
                num_prefill_checkpoint_blocks=int(self.leaves_checkpoints),
                prefill_checkpoint_alignment=1 if self.leaves_checkpoints else None,
            )
        common: dict[str, Any] = {"block_size": tokens, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
        if window < 0:
            return ChunkedLocalAttentionSpec(attention_chunk_size=-window, **common)
        return SlidingWindowSpec(sliding_window=window, **common) if window else FullAttentionSpec(**common)


GEMMA3 = Layout(windows=(0, 256, 256, 256), layers_each=1, blocks=72)
GEMMA4 = Layout(windows=(256, 256, 0), layers_each=1, blocks=48, places=(2, 2, 1))
GPT_OSS = Layout(windows=(130, 0), layers_each=2, blocks=44)
LLAMA4 = Layout(windows=(window_of_chunk(256), 0), layers_each=2, blocks=44)
MISTRAL = Layout(windows=(300,), layers_each=3, blocks=28)
MAMBA2 = Layout(windows=(OF_A_STATE,), layers_each=3, blocks=4)
QWEN3_NEXT = Layout(windows=(OF_A_STATE, OF_A_STATE, OF_A_STATE, 0), layers_each=2, blocks=26)
QWEN3_NEXT_DRAFTS = QWEN3_NEXT._replace(drafts=2, blocks=44)
QWEN3_NEXT_CACHED = QWEN3_NEXT._replace(caches_states=True, blocks=34)
FALCON_H1_CACHED = Layout(
    windows=(OF_A_STATE, 0), layers_each=2, blocks=30, caches_states=True, leaves_checkpoints=True
)
MAMBA2_CACHED = MAMBA2._replace(caches_states=True, leaves_checkpoints=True, blocks=12)


def request(name: str, tokens: Sequence[int], role: Role, grids: Grids) -> Request:
    """A request of vLLM's, part of a transfer."""
    made = Request(
        f"{role[0]}-{name}",
        list(tokens),
        SamplingParams(max_tokens=1),
        None,
        block_hasher=get_request_block_hasher(BLOCK_TOKENS, sha256),
    )
    peer = ",".join(map(address_of, range(grids.prefill.ranks))) if role == "decode" else ""
    made.kv_transfer_params = sign(
        TransferParams(transfer_id=name.encode().hex().zfill(32), role=role, peer=peer, grids=grids), SECRET
    )
    return made


def content(token: int, layer: int, place: int) -> bytes:
    """What the KV of a token at a place of a prompt looks like in a layer."""
    return f"{token} {layer} {place}".encode().ljust(TOKEN_BYTES, b".")


def state(tokens: Sequence[int], layer: int) -> bytes:
    """What a recurrent layer's state looks like after some tokens of a prompt, from its beginning."""
    text = f"{layer} {len(tokens)} {blake2b(repr(list(tokens)).encode(), digest_size=20).hexdigest()}"
    return text.encode().ljust(STATE_BYTES, b".")


class GroupMemory:
    """The KV cache of one rank: the first layers of all groups in one buffer, the second ones in the next."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._bytes = (ctypes.c_char * (layout.layers_each * layout.blocks * layout.stride_bytes))()
        base = ctypes.addressof(self._bytes)
        groups = len(layout.windows)
        self.caches = Caches(
            layer_of={f"layer.{layer}": layer for layer in range(layout.num_layers)},
            regions=tuple(
                Region(
                    name=f"layer.{layer}",
                    layer=layer,
                    base_addr=base + layer // groups * layout.blocks * layout.stride_bytes,
                    block_bytes=STATE_BYTES
                    if layout.is_state(layer)
                    else BLOCK_BYTES * layout.places_of(layout.group_of(layer)),
                    stride_bytes=layout.stride_bytes,
                    num_blocks=layout.blocks,
                    group=layout.group_of(layer),
                    window=layout.windows[layout.group_of(layer)],
                    places=layout.places_of(layout.group_of(layer)),
                )
                for layer in range(layout.num_layers)
            ),
            num_blocks=layout.blocks,
            block_tokens=layout.block_tokens,
        )

    def digests(self, blocks: Sequence[int], regions: Sequence[int]) -> bytes:
        """The digests of some blocks, computed as a worker computes them."""
        return RegionDigests([torch.frombuffer(self._bytes, dtype=torch.uint8)], self.caches.regions)(blocks, regions)

    @property
    def ranks(self) -> list["GroupMemory"]:
        """Of the node, one by one."""
        return [self]

    def address(self, layer: int, block: int, place: int = 0) -> int:
        """Where the KV of the token at a place of a prompt lies."""
        region, tokens = self.caches.regions[layer], self._layout.tokens_of(self._layout.group_of(layer))
        return region.base_addr + block * region.stride_bytes + place % tokens * TOKEN_BYTES

    def fill(self, layer: int, block: int, text: bytes) -> None:
        """Write over the beginning of a block, whatever it holds."""
        ctypes.memmove(self.address(layer, block), text, len(text))

    def write(self, layer: int, block: int, place: int, text: bytes) -> None:
        """Write the KV of tokens in a row, of which the first stands at a place of a prompt."""
        ctypes.memmove(self.address(layer, block, place), text, len(text))

    def read(self, layer: int, block: int, place: int) -> bytes:
        return ctypes.string_at(self.address(layer, block, place), TOKEN_BYTES)

    def write_state(self, layer: int, block: int, text: bytes) -> None:
        self.fill(layer, block, text)

    def read_state(self, layer: int, block: int) -> bytes:
        return ctypes.string_at(self.address(layer, block), STATE_BYTES)

    def has_state(self, layer: int, block: int, text: bytes) -> bool:
        """Whether a block holds, of this state, what it is to hold here."""
        return self.read_state(layer, block) == text

    def copy_state(self, layer: int, source: int, target: int) -> None:
        """Copy the state of one block to another."""
        self.fill(layer, target, self.read_state(layer, source))
