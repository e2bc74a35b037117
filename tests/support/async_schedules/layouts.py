"""KV cache layouts with windows, several groups, states and ranks, each with vLLM's own block manager.

A block has few tokens, so that schedules are quick; what counts is how many blocks a window, a chunk and a prompt have.
"""

from collections.abc import Sequence
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

from baton.contracts.kv_transfer import SINGLE, Grid, Grids, Role, TransferParams, sign
from baton.kv_connector.layout.groups import CACHED_STATES, STATE, Group
from baton.kv_connector.layout.windows import OF_A_STATE, window_of_chunk
from tests.support.async_schedules.wire import address_of
from tests.support.ranks import BLOCK_BYTES, BLOCK_TOKENS, SECRET

TOKEN_BYTES = BLOCK_BYTES // BLOCK_TOKENS
CHUNK_TOKENS = 4 * BLOCK_TOKENS
PROMPT_TOKENS = 12 * BLOCK_TOKENS - 5  # of a long prompt
MODEL_TOKENS = 32 * BLOCK_TOKENS
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


QWEN3_NEXT = Layout(windows=(OF_A_STATE, OF_A_STATE, OF_A_STATE, 0), layers_each=2, blocks=26)
QWEN3_NEXT_DRAFTS = QWEN3_NEXT._replace(drafts=2, blocks=44)
QWEN3_NEXT_CACHED = QWEN3_NEXT._replace(caches_states=True, blocks=34)
FALCON_H1_CACHED = Layout(
    windows=(OF_A_STATE, 0), layers_each=2, blocks=30, caches_states=True, leaves_checkpoints=True
)
MAMBA2 = Layout(windows=(OF_A_STATE,), layers_each=3, blocks=4)
MAMBA2_CACHED = MAMBA2._replace(caches_states=True, leaves_checkpoints=True, blocks=12)
GEMMA4 = Layout(windows=(2 * BLOCK_TOKENS, 2 * BLOCK_TOKENS, 0), layers_each=1, blocks=48, places=(2, 2, 1))
LAYOUTS = {
    "Llama": Layout(windows=(0,), layers_each=4, blocks=16),
    "Gemma3": Layout(windows=(0, *[2 * BLOCK_TOKENS] * 3), layers_each=1, blocks=72),
    "Gemma 4": GEMMA4,
    "Gemma 4, TP 2 to 1": GEMMA4._replace(grids=Grids(Grid(2), Grid(1))),
    "GPT-OSS": Layout(windows=(BLOCK_TOKENS + 2, 0), layers_each=2, blocks=44),
    "Llama 4": Layout(windows=(window_of_chunk(2 * BLOCK_TOKENS), 0), layers_each=2, blocks=44),
    "Mistral": Layout(windows=(2 * BLOCK_TOKENS + 5,), layers_each=3, blocks=16),
    "Mamba2": MAMBA2,
    "Mamba2, TP 1 to 2": MAMBA2._replace(grids=Grids(Grid(1), Grid(2))),
    "Mamba2, cached, TP 2 to 1": MAMBA2_CACHED._replace(grids=Grids(Grid(2), Grid(1))),
    "Falcon-H1, cached": FALCON_H1_CACHED,
    "Falcon-H1, cached, TP 1 to 2": FALCON_H1_CACHED._replace(grids=Grids(Grid(1), Grid(2))),
    "Qwen3-Next, TP 2 to 1": QWEN3_NEXT._replace(grids=Grids(Grid(2), Grid(1))),
    "Qwen3-Next, drafts, TP 1 to 2": QWEN3_NEXT_DRAFTS._replace(grids=Grids(Grid(1), Grid(2))),
    "Qwen3-Next, cached, TP 2 to 2": QWEN3_NEXT_CACHED._replace(grids=Grids(Grid(2), Grid(2))),
    "Nemotron-H with a window, cached": Layout(
        windows=(OF_A_STATE, 0, 4 * BLOCK_TOKENS), layers_each=1, blocks=60, caches_states=True
    ),
}


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
