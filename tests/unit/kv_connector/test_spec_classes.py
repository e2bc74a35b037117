"""Every class of KV cache that the installed vLLM has is either handed over or refused by name: a new one is noticed here."""

import inspect
from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
from vllm.v1 import kv_cache_interface
from vllm.v1.kv_cache_interface import KVCacheSpec, UniformTypeKVCacheSpecs

from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.layout.groups import groups_of
from baton.kv_connector.layout.windows import window_of_chunk

BLOCK_TOKENS: Final = 16
HANDED_OVER: Final = {  # class → what its window is said to be
    "ChunkedLocalAttentionSpec": window_of_chunk(64),
    "FullAttentionSpec": 0,
    "MLAAttentionSpec": 0,
    "MambaSpec": 2,
    "SlidingWindowSpec": 64,
}
ABSTRACT: Final = {"AttentionSpec"}  # no layer has it
VALUES: Final[dict[str, Any]] = {  # of fields without a default
    "block_size": BLOCK_TOKENS,
    "num_kv_heads": 2,
    "head_size": 8,
    "dtype": torch.float32,
    "attention_chunk_size": 64,
    "sliding_window": 64,
    "rswa_window": 64,
    "shapes": ((2, 2),),
    "dtypes": (torch.float32,),
}


def classes() -> list[type[KVCacheSpec]]:
    """All subclasses, in any depth; `UniformTypeKVCacheSpecs` is a group of others."""
    found, todo = [], [KVCacheSpec]
    while todo:
        todo += todo[0].__subclasses__()
        found.append(todo.pop(0))
    return [kind for kind in found[1:] if kind is not UniformTypeKVCacheSpecs]


def made(kind: type[KVCacheSpec]) -> KVCacheSpec:
    """A spec of a class, with its defaults and any values for the rest."""
    given = [field for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]
    return kind(**{field.name: VALUES.get(field.name, BLOCK_TOKENS) for field in given if field.init})


def cache(spec: KVCacheSpec) -> Any:
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_a_class_is_handed_over_or_refused_by_name(kind: type[KVCacheSpec]) -> None:
    """Alone, and as layers of one group that differ in size. One that is in neither list fails here."""
    if kind.__name__ in ABSTRACT:
        assert kind.__subclasses__()
        return
    spec = made(kind)
    several = UniformTypeKVCacheSpecs(block_size=BLOCK_TOKENS, kv_cache_specs={"a": spec, "b": spec})
    for caches in (cache(spec), cache(several)):
        if kind.__name__ in HANDED_OVER:
            assert [group.window for group in groups_of(caches, BLOCK_TOKENS)] == [HANDED_OVER[kind.__name__]]
        else:
            with pytest.raises(ConnectorConfigError, match=rf"kind {kind.__name__}, "):
                groups_of(caches, BLOCK_TOKENS)


def test_the_lists_name_classes_that_exist() -> None:
    """And the walk finds all that vLLM's module defines: one that it builds in another way would be missed."""
    found = {kind.__name__ for kind in classes()}
    defined = {
        name
        for name, kind in inspect.getmembers(kv_cache_interface, inspect.isclass)
        if issubclass(kind, KVCacheSpec) and kind not in (KVCacheSpec, UniformTypeKVCacheSpecs)
    }

    assert found >= HANDED_OVER.keys() | ABSTRACT
    assert found >= defined


def test_a_state_for_several_tokens_is_refused() -> None:
    """Compressed caches: P would send the last one before D's token is in it."""
    spec = kv_cache_interface.FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=8, dtype=torch.float32, tokens_per_state=4
    )
    with pytest.raises(ConnectorConfigError, match="one state for 4 tokens has not been tried"):
        groups_of(cache(spec), BLOCK_TOKENS)
