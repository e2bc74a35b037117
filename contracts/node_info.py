"""What a node says about itself on `GET /baton/node`.

The proxy reads it to learn roles, control addresses and whether two nodes may be paired; people, to see why not.
"""

import re
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(max_length=256)]
Word = Annotated[str, msgspec.Meta(max_length=512)]


# Behind the states of recurrent layers, in the fingerprint's `attention`: how many tokens are drafted a step.
DRAFTS = "drafts"
CPU_ATTENTION = "CPU_ATTN"  # what the fingerprint's `attention` begins with on a CPU; vLLM's name of the backend
NodeState = Literal["starting", "ready", "draining", "silent", "failed"]


class RegionInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One buffer of KV blocks as announced to peers; `baton.kv_connector.layout.regions` has a picture."""

    name: Name
    layer: int  # index of the layer in the rank's order
    base_addr: int  # device address of block 0, bytes
    block_bytes: int  # payload of one scheduler block
    stride_bytes: int  # start of block i to start of block i + 1
    num_blocks: int  # scheduler blocks
    kernel_blocks: int = 1  # in a scheduler block, side by side
    heads: int = 1  # slabs in a kernel block, one per KV head of this rank
    total_heads: int = 0  # KV heads of all ranks together; 0: a block cannot be divided by heads
    # In a slab: (how many in a row, bytes of one token in each); empty: a slab cannot be divided by tokens.
    sections: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=64)] = ()
    group: int = 0  # KV cache group, whose block table names its blocks; others' layers may lie in the same memory
    window: int = 0  # tokens that a token reads; 0: all; negative: those of its chunk of so many
    places: int = 1  # scheduler blocks of tokens in one of its blocks
    drafter: Name = ""  # names the drafter whose layer it is; empty: the target's
    # Of a recurrent layer's state, run by run: (bytes of a part, parts of all ranks together); empty: not divisible.
    state_parts: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=512)] = ()


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What must be equal on both sides for KV bytes to mean the same thing; for block sizes see `differences`."""

    weights: Word  # digest of configuration and weight files, or the hub revision; and of `--hf-overrides`
    dtype: Word
    kv_cache_dtype: Word
    quantization: Word
    rope: Word  # digest of the RoPE settings
    attention: Word  # attention backend, with its instruction set on CPU
    block_size_tokens: int


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has to do at this moment, from whomever it came."""

    requests: Count  # that it has accepted and not ended
    prompt_bytes: Count  # of their bodies
    running: Count | None = None  # sequences in the engine's batch; None where vLLM does not say
    waiting: Count | None = None  # sequences that wait for it
    kv_usage: float | None = None  # share of the KV cache's blocks that are in use
    # Since the node's process began, over all streams: times between two tokens. None where vLLM does not say.
    inter_token_count: Count | None = None
    inter_token_sum_s: float | None = None


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that a node serves under a name of its own."""

    name: Word
    root: str  # path or hub id of its files
    parent: Word  # a name of the base model that it belongs to


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `GET /baton/node`."""

    role: Literal["prefill", "decode"]
    # "silent": the engine's process is there and does not answer at this moment; "failed": it is gone, or answers
    # errors. Of a silent node all else is what it said last.
    state: NodeState
    model: str  # path or hub id
    served_models: list[str]
    max_model_len_tokens: int
    incarnation: str  # random per start of the node's process
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    # One per data-parallel engine: "tcp://host:port" of each of its ranks, stage by stage, joined by commas. None on
    # decode nodes that only receive.
    control_addresses: list[str]
    fingerprint: Fingerprint | None  # None until the KV cache is allocated
    regions: list[RegionInfo]
    num_blocks: int
    layer_sync: str
    versions: dict[str, str]  # baton, protocol, vllm, mooncake, torch
    load: NodeLoad | None = None  # None: it does not say
    adapters: list[Adapter] | None = None  # among `served_models`; None: it does not say which of these are adapters
    routes: list[Word] | None = None  # paths that its server has; None: it does not say
    # P samples the first token for D, D starts requests with it; a digest of what must be equal on both for that,
    # behind `RELAYS_AND_STARTS` if it can do that too. Empty: it does neither.
    first_tokens: Word = ""
    # Its engine sends KV and receives it, whatever its role: it takes legs of either role, and a prefill leg's `start`.
    # False: its role's legs alone.
    both_ways: bool = False


# P ends a request after its first token while its stream goes on, D starts one with tokens that the client has, with or
# without a transfer, and both know a transfer for each of several answers.
RELAYS_AND_STARTS = "3-"


def differences(mine: Fingerprint, theirs: Fingerprint) -> list[str]:
    """Name each field in which two fingerprints differ, with both values; empty if KV may be exchanged.

    Of two block sizes one must divide the other. On CPUs they must be equal: the kernel keeps the keys of a block
    dimension by dimension, so another size would travel in pieces of some hundred bytes, each as dear as a whole block.
    """
    ours, others = to_plain(mine), to_plain(theirs)
    sizes = sorted((mine.block_size_tokens, theirs.block_size_tokens))
    differing = [name for name in ours if ours[name] != others[name]]
    if sizes[0] > 0 and sizes[1] % sizes[0] == 0 and not mine.attention.startswith(CPU_ATTENTION):
        differing = [name for name in differing if name != "block_size_tokens"]
    fix = {"block_size_tokens": " (give both nodes the same --block-size)"}
    if _drafts(mine) != _drafts(theirs):
        fix["attention"] = " (beside recurrent layers, give both nodes the same num_speculative_tokens, or none)"
    return [f"{name}: {ours[name]!r} here, {others[name]!r} there{fix.get(name, '')}" for name in differing]


def _drafts(fingerprint: Fingerprint) -> list[str]:
    """How many tokens are drafted a step beside recurrent layers, if any are."""
    return re.findall(rf"/{DRAFTS} (\d+)", fingerprint.attention)


@lru_cache(maxsize=1024)
def compatible(mine: Fingerprint, theirs: Fingerprint) -> bool:
    return not differences(mine, theirs)


def to_plain(struct: msgspec.Struct) -> dict[str, Any]:
    return msgspec.to_builtins(struct)  # type: ignore[no-any-return]  # msgspec types this as Any
