"""The KV cache groups of an engine, read from its own configuration: never from a model's name.

Layers of one group share a block table. Groups draw their blocks from one pool, and layers of different groups may lie
in the same memory. `windows.py` says what a window means for a prompt's blocks.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

from kv_connector.engine_version import KNOWS_FAILED_RECEIVES
from kv_connector.errors import ConfigError
from kv_connector.protocol import MAX_GROUPS
from kv_connector.windows import EVERYTHING

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

_WITHOUT = "start with --disable-hybrid-kv-cache-manager, which keeps every layer's KV in full"
_KEEPS_ALL = (FullAttentionSpec, MLAAttentionSpec)  # no subclasses: they may free blocks by rules of their own


class Group(NamedTuple):
    """Layers with one block table."""

    window: int = EVERYTHING  # tokens that a token reads, itself included

    def most_read_blocks(self, block_tokens: int) -> float:
        """Return how many blocks of a prompt may still be read, at most."""
        return inf if self.window == EVERYTHING else -(-self.window // block_tokens) + 1


ONE_GROUP: Sequence[Group] = (Group(),)


def have_windows(groups: Sequence[Group]) -> bool:
    """Whether vLLM may free blocks of a prompt that is still in use."""
    return any(group.window != EVERYTHING for group in groups)


def refuse_beside(groups: Sequence[Group]) -> None:
    """Check what another KV connector beside ours has been tried with.

    Raises:
        ConfigError: not with these groups.
    """
    if len(groups) > 1 or have_windows(groups):
        raise ConfigError(
            "another KV connector beside Baton's has not been tried with a sliding window or several KV cache groups: "
            f"leave out `beside`, or {_WITHOUT}"
        )


def groups_of(
    kv_cache_config: "KVCacheConfig", block_tokens: int, *, can_fail: bool = KNOWS_FAILED_RECEIVES
) -> tuple[Group, ...]:
    """Read the groups.

    Args:
        kv_cache_config: The engine's.
        block_tokens: Tokens of a scheduler block.
        can_fail: Whether this vLLM can be told which requests' receives failed.

    Raises:
        ConfigError: one of them cannot be handed off; the message says why.
    """
    found = kv_cache_config.kv_cache_groups
    groups = tuple(Group(_window_of(group)) for group in found)
    if len(groups) > MAX_GROUPS:
        raise ConfigError(f"{len(groups)} KV cache groups: a hand-off has at most {MAX_GROUPS}")
    sizes = sorted({group.kv_cache_spec.block_size for group in found})
    if len(groups) > 1 and sizes != [block_tokens]:
        raise ConfigError(
            f"KV cache groups with blocks of different numbers of tokens ({', '.join(map(str, sizes))}; the scheduler's "
            f"have {block_tokens}) are not covered yet: {_WITHOUT}"
        )
    if not can_fail and (len(groups) > 1 or have_windows(groups)):
        raise ConfigError(
            "a KV cache with a sliding window or several groups needs vLLM 0.30 or newer: an older one cannot be told "
            "which requests' KV did not arrive"
        )
    return groups


def _window_of(group: "KVCacheGroupSpec") -> int:
    of_layers = getattr(group.kv_cache_spec, "kv_cache_specs", None)  # of layers that differ in size only
    windows = {_window_of_layer(spec) for spec in (of_layers.values() if of_layers else [group.kv_cache_spec])}
    if len(windows) > 1:
        raise ConfigError(
            f"a KV cache group with windows of {', '.join(map(str, sorted(windows)))} tokens is not covered yet"
        )
    return windows.pop()


def _window_of_layer(spec: Any) -> int:
    if type(spec) in _KEEPS_ALL:
        return EVERYTHING
    if type(spec) is not SlidingWindowSpec or _retains_more(spec):
        raise ConfigError(
            f"a KV cache of kind {type(spec).__name__}, which keeps its blocks by rules of its own, is not covered yet: "
            f"if other layers attend to everything, {_WITHOUT}"
        )
    return int(spec.sliding_window)


def _retains_more(spec: object) -> bool:
    """Whether blocks are kept beyond the window; older versions of vLLM cannot."""
    return bool(getattr(spec, "extra_retained_tokens", 0))
