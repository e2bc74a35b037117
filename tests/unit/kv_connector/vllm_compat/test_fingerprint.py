"""Fingerprints from a stand-in for vLLM's configuration."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from baton.contracts.node_info import Fingerprint, differences
from baton.kv_connector.errors import ConnectorConfigError
from baton.kv_connector.vllm_compat.fingerprint import fingerprint_of


class Layer:
    """What we use of vLLM's `Attention`."""

    def __init__(self, backend: str, **attributes: Any) -> None:
        self._backend = backend
        self.__dict__.update(attributes)

    def get_attn_backend(self) -> Any:
        return SimpleNamespace(get_name=lambda: self._backend)


def config(*layers: Any, rope: Any = None, text_rope: Any = None, cache_dtype: str = "auto", **model: Any) -> Any:
    """What we read of vLLM's configuration."""
    hf_config = SimpleNamespace(rope_parameters=rope or {"rope_theta": 1e4})
    if text_rope:
        hf_config.text_config = SimpleNamespace(rope_parameters=text_rope)
    fields = {"dtype": torch.bfloat16, "quantization": None, "hf_config": hf_config} | model
    return SimpleNamespace(
        model_config=SimpleNamespace(**fields),
        cache_config=SimpleNamespace(cache_dtype=cache_dtype, block_size=128),
        compilation_config=SimpleNamespace(static_forward_context=dict(enumerate(layers))),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        speculative_config=None,
    )


CPU_LAYER = Layer("CPU_ATTN", isa="vec")


@pytest.mark.parametrize("cache_dtype", ["auto", "bfloat16"])
def test_every_field_is_plain_text(cache_dtype: str) -> None:
    """The fingerprint reads as an operator would write it. Two nodes may say the same thing in two ways."""
    found = fingerprint_of(config(CPU_LAYER, cache_dtype=cache_dtype), "abc")

    assert (found.weights, found.dtype, found.kv_cache_dtype) == ("abc", "bfloat16", "bfloat16")
    assert (found.quantization, found.attention, found.block_size_tokens) == ("none", "CPU_ATTN/vec", 128)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"rope": {"rope_theta": 1e6}}, "rope"),
        ({"text_rope": {"rope_theta": 1e6}}, "rope"),
        ({"dtype": torch.float16}, "dtype"),
        ({"quantization": "fp8"}, "quantization"),
        ({"cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"hf_overrides": {"vision_config": {"depth": 3}}}, "weights"),
        ({"hf_config_path": "/elsewhere"}, "weights"),
    ],
)
def test_what_changes_the_bytes_changes_the_fingerprint(changed: dict[str, Any], field: str) -> None:
    """Nodes that differ in one of these must not exchange KV, and the reason names it."""
    found = differences(fingerprint_of(config(CPU_LAYER), "abc"), fingerprint_of(config(CPU_LAYER, **changed), "abc"))

    assert any(line.startswith(f"{field}:") for line in found)


def test_the_order_inside_a_block_is_told_apart() -> None:
    """Heads before tokens and tokens before heads are equally long; where layers and blocks lie is each node's own."""
    found = {}
    for layout in ("LBHNC", "BLHNC", "LBNHC", None):
        described = config(Layer("FLASH_ATTN"))
        described.cache_config.kv_cache_layout = layout
        found[layout] = fingerprint_of(described, "abc").attention

    assert list(found.values()) == ["FLASH_ATTN/HNC", "FLASH_ATTN/HNC", "FLASH_ATTN/NHC", "FLASH_ATTN"]


@pytest.mark.parametrize(
    ("layers", "attention"),
    [
        ([Layer("CPU_ATTN", isa="amx")], "CPU_ATTN/amx"),  # packs its blocks in another way than AVX
        ([Layer("B"), Layer("A"), object(), Layer("A")], "A+B"),  # other modules of the model do not count
    ],
)
def test_backends_and_their_instruction_sets_are_named(layers: list[Any], attention: str) -> None:
    """A model may mix them."""
    assert fingerprint_of(config(*layers), "abc").attention == attention


def test_states_are_told_apart() -> None:
    """Their shapes, in the order in which the dimensions lie, and their types, which a flag of each node may set."""

    def recurrent(*shape: int, dtype: torch.dtype = torch.float32) -> Layer:
        states = (shape, (2, 8)), (torch.bfloat16, dtype)
        return Layer("GDN_ATTN", get_state_shape=lambda: states[0], get_state_dtype=lambda: states[1])

    found = [
        fingerprint_of(config(CPU_LAYER, layer), "abc").attention
        for layer in (recurrent(3, 16), recurrent(16, 3), recurrent(3, 16, dtype=torch.float16))
    ]

    assert found[0] == "CPU_ATTN/vec+GDN_ATTN/3x16:bfloat16/2x8:float32"
    assert len(set(found)) == 3


def test_nodes_that_draft_another_number_of_tokens_beside_states_are_not_paired() -> None:
    """Or of which one drafts nothing: their convolutions keep other numbers of tokens. The reason says what to do."""

    def drafting(tokens: int) -> Fingerprint:
        shapes = (3 + tokens, 16), (2, 8)
        types = (torch.bfloat16, torch.float32)
        made = config(CPU_LAYER, Layer("GDN_ATTN", get_state_shape=lambda: shapes, get_state_dtype=lambda: types))
        made.speculative_config = SimpleNamespace(method="ngram", num_speculative_tokens=tokens) if tokens else None
        return fingerprint_of(made, "abc")

    assert drafting(2).attention == "CPU_ATTN/vec+GDN_ATTN/5x16:bfloat16/2x8:float32/drafts 2"
    assert differences(drafting(2), drafting(2)) == []
    for other in (0, 1):
        (found,) = differences(drafting(2), drafting(other))
        assert "give both nodes the same num_speculative_tokens, or none" in found


def test_states_are_the_same_whatever_the_number_of_ranks() -> None:
    """Their shapes are those of all ranks together, where it is known how they divide them."""

    def rank_of(tp_size: int) -> Any:
        shapes = (3, 60 // tp_size), (4 // tp_size, 5, 5)
        layer = Layer(
            "GDN_ATTN",
            num_heads=4,
            head_dim=5,
            get_state_shape=lambda: shapes,
            get_state_dtype=lambda: (torch.bfloat16, torch.float32),
        )
        made = config(layer)
        made.parallel_config.tensor_parallel_size = tp_size
        return made

    found = [fingerprint_of(rank_of(tp_size), "abc").attention for tp_size in (1, 2)]

    assert found == ["GDN_ATTN/3x60:bfloat16/4x5x5:float32"] * 2


def test_a_process_without_a_model_cannot_be_described() -> None:
    """Guessing a backend would let incompatible nodes meet. A block is as long as the connector counts it."""
    assert fingerprint_of(config(CPU_LAYER), "abc", block_tokens=384).block_size_tokens == 384
    with pytest.raises(ConnectorConfigError, match="no attention layers"):
        fingerprint_of(config(), "abc")


@pytest.mark.parametrize("arguments", [3, 4])
def test_the_instruction_set_is_asked_for_where_layers_do_not_tell(
    arguments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function in vLLM that chooses it has had three and four parameters."""

    def three(dtype: object, block_size: int, head_size: int) -> str:
        return f"vec{block_size}-{head_size}"

    def four(dtype: object, block_size: int, head_size: int, kv_cache_dtype: str) -> str:
        return f"vec{block_size}-{head_size}"

    module = ModuleType("cpu_attn")
    module._get_attn_isa = three if arguments == 3 else four  # type: ignore[attr-defined]  # a stand-in
    for name in ("vllm", "vllm.v1", "vllm.v1.attention"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    backends = ModuleType("vllm.v1.attention.backends")
    backends.cpu_attn = module  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends", backends)

    assert fingerprint_of(config(Layer("CPU_ATTN", head_size=32)), "abc").attention == "CPU_ATTN/vec128-32"


def test_a_drafters_layers_do_not_count() -> None:
    """A node with a drafter and one without exchange the target's KV."""
    plain, drafting = config(CPU_LAYER), config()
    drafting.speculative_config = SimpleNamespace(method="draft_model")
    drafting.compilation_config.static_forward_context = {
        "model.layers.0": CPU_LAYER,
        "draft_model.layers.0": Layer("CPU_ATTN", isa="vec16"),
    }

    assert differences(fingerprint_of(plain, "abc"), fingerprint_of(drafting, "abc")) == []
