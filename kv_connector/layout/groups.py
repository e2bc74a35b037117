"""The KV cache groups of an engine, read from its own configuration: never from a model's name.

Layers of one group share a block table. Groups draw their blocks from one pool, and layers of different groups may lie
in the same memory. `windows.py` says what a window means for a prompt's blocks.

Where tokens of one layer are longer than of another, vLLM gives the others longer blocks, so that all have as many
bytes. A *place* of a prompt is as many tokens as the shortest block has, a scheduler block: a longer one stands at its
last place (it is ready when that is), and the places before it are empty.

The layers of a recurrent group (Mamba, GDN) keep a *state* each, that of all tokens computed so far. Without vLLM's
prefix cache the group's table has a single block, which has its place where a window's last block would be. With it
(cache mode *align*) there is a table as of a window of two tokens: the last block has the running state, and those
before it states at the ends of blocks, or nothing. With speculative decoding of k tokens a step the table without the
prefix cache has k blocks more, for the states after each drafted token. The first block has the state of all tokens
that are certain: it alone is read when a request's tokens have come from elsewhere.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.layout.windows import EVERYTHING, OF_A_STATE, first_read_block, window_of_chunk
from baton.kv_connector.protocol.messages import MAX_GROUPS
from baton.kv_connector.vllm_compat.versions import KNOWS_FAILED_RECEIVES

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

T = TypeVar("T")

_WITHOUT = "start with --disable-hybrid-kv-cache-manager, which keeps every layer's KV in full"
_KEEPS_ALL = (FullAttentionSpec, MLAAttentionSpec)  # no subclasses: they may free blocks by rules of their own


class Group(NamedTuple):
    """Layers with one block table."""

    window: int = EVERYTHING  # tokens that a token reads, itself included; negative: a chunk (`windows.py`)
    is_state: bool = False  # its layers are recurrent
    places: int = 1  # that a block stands for
    is_single: bool = False  # of its table one block is read by others, whatever the prompt's length
    drafts: int = 0  # of a state: tokens that are drafted a step, and blocks behind its own in the table

    def most_read_blocks(self, block_tokens: int) -> float:
        """Return how many blocks of a prompt may still be read, at most; `block_tokens` are those of a place."""
        if self.is_state:
            return 1
        return inf if self.window == EVERYTHING else -(-abs(self.window) // (block_tokens * self.places)) + 1

    def blocks_of(self, tokens: int, block_tokens: int) -> int:
        """Return how many blocks a prompt needs at a time, at most."""
        read = int(min(-(-tokens // (block_tokens * self.places)), self.most_read_blocks(block_tokens)))
        return read + self.drafts

    def spread(self, blocks: Sequence[T], first: int, tokens: int, block_tokens: int, empty: T) -> list[T]:
        """Give blocks, of which the first is the table's block number `first`, their places in a prompt of so many tokens.

        A single one stands for the last token that P computes; those behind it, for drafted tokens, have no place.
        """
        if self.is_single:
            return [] if first else [empty] * self.place_of_first(tokens, block_tokens) + [*blocks[:1]]
        if self.places == 1:
            return [*blocks]
        all_places, spread = -(-tokens // block_tokens), []
        for number, block in enumerate(blocks, first):
            width = min(self.places, all_places - number * self.places)
            spread += [empty] * (width - 1) + [block] if width > 0 else []  # else it is beyond the prompt
        return spread

    def place_of_first(self, tokens: int, block_tokens: int) -> int:
        """Return the place, in a prompt of so many tokens, of the first block of the group's table."""
        return first_read_block(tokens, self.window, block_tokens) if self.is_single else 0


ONE_GROUP: Sequence[Group] = (Group(),)
STATE = Group(OF_A_STATE, is_state=True, is_single=True)
CACHED_STATES = Group(OF_A_STATE, is_state=True)


def have_windows(groups: Sequence[Group]) -> bool:
    """Whether vLLM may free blocks of a prompt that is still in use."""
    return any(group.window != EVERYTHING for group in groups)


def have_states(groups: Sequence[Group]) -> bool:
    """Whether some layers keep a state, which is that of the last token computed and of no other."""
    return any(group.is_state for group in groups)


def hits_may_diverge(groups: Sequence[Group]) -> bool:
    """Whether D may count a prefix as cached that is so in its layers with attention alone: all that lacks are states, which P sends.

    Not beside windows, or attention of two kinds: P sends what lies behind the prefix, and a group that has less of it
    would be left with blocks that nothing fills.
    """
    return [group.window for group in groups if not group.is_state] == [EVERYTHING]


def least_tokens(groups: Sequence[Group]) -> int:
    """Return how many tokens of a prompt are worth a transfer.

    With drafts and states a single one is not: on a busy P vLLM 0.32 fills a prompt of one token up with drafts that
    are none (`Scheduler.schedule`), and its state would be that of these too.
    """
    return 2 if any(group.drafts for group in groups) else 1


def ends_with_blocks(groups: Sequence[Group], block_tokens: int, tokens: int) -> bool:
    """Whether a prefix of so many tokens ends with a block in every group: else one would come in part from another node."""
    return all(tokens % (block_tokens * group.places) == 0 for group in groups if group.places > 1)


def refuse_beside(groups: Sequence[Group]) -> None:
    """Raise `ConnectorConfigError` for groups with which no other KV connector beside ours has been tried."""
    if have_states(groups):
        raise ConnectorConfigError(
            "another KV connector beside Baton's has not been tried with recurrent layers (Mamba, GDN): leave out `beside`"
        )
    if len(groups) > 1 or have_windows(groups):
        raise ConnectorConfigError(
            "another KV connector beside Baton's has not been tried with a sliding window or several KV cache groups: "
            f"leave out `beside`, or {_WITHOUT}"
        )


def block_tokens_of(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> int:
    """Return the tokens of a scheduler block, the same in the scheduler's process as in a worker's: the shortest of all.

    Beside recurrent layers that is a block of the other layers: vLLM's own number is the smallest of all groups' in one
    of its processes, and a state's block may be as long as a request may be. Without other layers it is the state's.
    """
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    states = [spec.block_size for spec in specs if _keeps_states(spec)]
    others = [spec.block_size for spec in specs if not _keeps_states(spec)]
    return int(min(others or states)) if states or len(specs) > 1 else int(vllm_config.cache_config.block_size)


def groups_of(
    kv_cache_config: "KVCacheConfig", block_tokens: int, *, can_fail: bool = KNOWS_FAILED_RECEIVES
) -> tuple[Group, ...]:
    """Read the groups; raises `ConnectorConfigError`, which says why, if one of them cannot be handed off.

    `block_tokens`: of a scheduler block. `can_fail`: this vLLM can be told which requests' receives failed.
    """
    found = kv_cache_config.kv_cache_groups
    groups = tuple(_group_of(group, block_tokens) for group in found)
    if len(groups) > MAX_GROUPS:
        raise ConnectorConfigError(f"{len(groups)} KV cache groups: a hand-off has at most {MAX_GROUPS}")
    sizes = sorted(
        {spec.kv_cache_spec.block_size for group, spec in zip(groups, found, strict=True) if not group.is_state}
    )
    if len(groups) > 1 and (any(size % block_tokens for size in sizes) or (have_states(groups) and len(sizes) > 1)):
        raise ConnectorConfigError(
            f"KV cache groups with blocks of {', '.join(map(str, sizes))} tokens, of which the shortest is no divisor of the "
            f"others or which stand beside recurrent layers, are not covered yet: {_WITHOUT}"
        )
    if not can_fail and (len(groups) > 1 or have_windows(groups)):
        raise ConnectorConfigError(
            "a KV cache with a sliding window or several groups needs vLLM 0.30 or newer, and so do recurrent layers: an "
            "older one cannot be told which requests' KV did not arrive"
        )
    return groups


def _layers(spec: Any) -> Sequence[Any]:
    of_layers = getattr(spec, "kv_cache_specs", None)  # of layers that differ in size only
    return list(of_layers.values()) if of_layers else [spec]


def state_kinds(kv_cache_config: "KVCacheConfig") -> set[str]:
    """Return the kinds of recurrent layer, by vLLM's names (`MambaAttentionBackendEnum`)."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    return {layer.mamba_type.name for spec in specs if _keeps_states(spec) for layer in _layers(spec)}


def _keeps_states(spec: Any) -> bool:
    return all(type(layer) is MambaSpec for layer in _layers(spec))


def _group_of(group: "KVCacheGroupSpec", block_tokens: int) -> Group:
    spec = group.kv_cache_spec
    if not _keeps_states(spec):
        return Group(_window_of(group), places=max(1, spec.block_size // block_tokens))
    modes = {layer.mamba_cache_mode for layer in _layers(spec)}
    drafts = max(layer.num_speculative_blocks for layer in _layers(spec))
    if modes == {"none"}:
        return STATE._replace(drafts=drafts)
    if modes != {"align"}:
        raise ConnectorConfigError(
            f"recurrent layers (Mamba, GDN) whose states are cached in mode {', '.join(sorted(modes))}, for each token of a step, "
            "are not covered: start with --mamba-cache-mode align, or --no-enable-prefix-caching"
        )
    if spec.block_size != block_tokens:
        raise ConnectorConfigError(
            f"recurrent layers (Mamba, GDN) whose states are cached every {spec.block_size} tokens, beside blocks of "
            f"{block_tokens} tokens, are not covered: leave out --mamba-block-size, or start with --no-enable-prefix-caching"
        )
    return CACHED_STATES._replace(drafts=drafts)


def _window_of(group: "KVCacheGroupSpec") -> int:
    windows = {_window_of_layer(spec) for spec in _layers(group.kv_cache_spec)}
    if len(windows) > 1:
        raise ConnectorConfigError(
            f"a KV cache group with windows of {', '.join(map(str, sorted(windows)))} tokens is not covered yet"
        )
    return windows.pop()


def _window_of_layer(spec: Any) -> int:
    is_window = type(spec) is SlidingWindowSpec and not _retains_more(spec)
    if type(spec) not in (*_KEEPS_ALL, ChunkedLocalAttentionSpec) and not is_window:
        raise ConnectorConfigError(
            f"a KV cache of kind {type(spec).__name__}, which keeps its blocks by rules of its own, is not covered yet: "
            f"if other layers attend to everything, {_WITHOUT}"
        )
    if getattr(spec, "tokens_per_state", 1) != 1:  # younger than our oldest version
        raise ConnectorConfigError(
            f"a KV cache that keeps one state for {spec.tokens_per_state} tokens has not been tried: a prompt's last one may be "
            "half computed"
        )
    if is_window:
        return int(spec.sliding_window)
    return EVERYTHING if type(spec) in _KEEPS_ALL else window_of_chunk(int(spec.attention_chunk_size))


def _retains_more(spec: object) -> bool:
    """Whether blocks are kept beyond the window; older versions of vLLM cannot."""
    return bool(getattr(spec, "extra_retained_tokens", 0))
