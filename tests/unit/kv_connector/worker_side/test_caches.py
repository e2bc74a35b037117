"""The KV caches that a worker registered, read off real tensors."""

from dataclasses import replace

import torch

from baton.kv_connector.layout.regions import StateParts
from baton.kv_connector.layout.windows import OF_A_STATE
from baton.kv_connector.vllm_compat.states import State
from baton.kv_connector.worker_side.caches import LayerGroup, describe


def cpu_caches() -> dict[str, torch.Tensor]:
    """Two layers in one storage, as vLLM's CPU backend lays them out: `[blocks, heads, tokens, 2 * head]`."""
    storage = torch.arange(2 * 6 * 2 * 16 * 8, dtype=torch.float32).view(2, 6, 2, 16, 8)
    return {"layer.0": storage[0], "layer.1": storage[1]}


def test_layers_of_one_storage_are_registered_as_one_span() -> None:
    """One registration, two regions."""
    tensors = cpu_caches()

    caches = describe(tensors, num_blocks=6, block_tokens=16)

    assert caches.num_layers == 2
    assert caches.layer_block_bytes == 2 * 16 * 8 * 4
    assert list(caches.spans) == [(tensors["layer.0"].data_ptr(), 2 * 6 * 2 * 16 * 8 * 4)]


def test_a_recurrent_layers_states_lie_side_by_side_in_a_page() -> None:
    """Before vLLM 0.32 a list of views into pages that are longer than the states; each is a region of the layer."""
    pages = torch.zeros(6, 100, dtype=torch.float32)
    states = [pages[:, :24].view(6, 3, 8).transpose(1, 2), pages[:, 24:88].view(6, 2, 4, 8)]

    caches = describe({"layer.0": states}, num_blocks=6, block_tokens=16, groups={"layer.0": LayerGroup(1, OF_A_STATE)})

    assert caches.num_layers == 1
    assert [(r.name, r.base_addr, r.block_bytes, r.stride_bytes, r.group, r.window) for r in caches.regions] == [
        ("layer.0.0", pages.data_ptr(), 96, 400, 1, 2),
        ("layer.0.1", pages.data_ptr() + 96, 256, 400, 1, 2),
    ]


def test_a_recurrent_layers_states_as_bytes_are_one_region() -> None:
    """As vLLM 0.32 registers them: `[blocks, 1, 1, bytes]`, without what fills up the page."""
    page = torch.zeros(6, 400, dtype=torch.int8).as_strided((6, 1, 1, 352), (400, 352, 352, 1))

    (region,) = describe({"layer.0": page}, num_blocks=6, block_tokens=16).regions

    assert (region.block_bytes, region.stride_bytes, region.total_heads) == (352, 400, 0)


def test_the_parts_of_states_are_those_of_their_regions() -> None:
    """Of a page of all states in a row; of each state for itself before vLLM 0.32; of none where a page holds something else."""
    states = {"layer.0": [State((8, 3), torch.float32, 96, ((48, 2),)), State((2, 4), torch.float32, 256, ((128, 2),))]}
    pages = torch.zeros(6, 100, dtype=torch.float32)
    apart = [pages[:, :24].view(6, 3, 8), pages[:, 24:88].view(6, 2, 4, 8)]

    def parts(tensor: torch.Tensor | list[torch.Tensor]) -> list[StateParts]:
        caches = describe({"layer.0": tensor}, num_blocks=6, block_tokens=16, states=states)
        return [region.state_parts for region in caches.regions]

    assert parts(torch.zeros(6, 1, 1, 352, dtype=torch.int8)) == [((48, 2), (128, 2))]
    assert parts(apart) == [((48, 2),), ((128, 2),)]
    assert parts(torch.zeros(6, 1, 1, 360, dtype=torch.int8)) == [()]


def test_k_and_v_as_two_tensors_are_two_regions_of_one_layer() -> None:
    """What vllm-ascend registers: a tuple, each of the two `[blocks, tokens, heads, head]`."""
    k, v = torch.zeros(6, 16, 2, 8), torch.zeros(6, 16, 2, 8)

    caches = describe({"layer.0": (k, v), "layer.1": (v, k)}, num_blocks=6, block_tokens=16)

    assert [(region.name, region.base_addr) for region in caches.regions] == [
        ("layer.0.0", k.data_ptr()),
        ("layer.0.1", v.data_ptr()),
    ]
    assert caches.num_layers == 1
    assert caches.layer_block_bytes == 2 * 16 * 2 * 8 * 4


def test_memory_is_registered_allocation_by_allocation() -> None:
    """A card registers memory of one allocation: two that happen to touch must not become one span."""
    both = torch.zeros(2, 6, 2, 16, 8)
    size = both[0].numel() * 4
    caches = describe({"layer.0": both[0], "layer.1": both[1]}, num_blocks=6, block_tokens=16)

    as_two = replace(caches, borders=caches.borders | {both[1].data_ptr()})

    assert caches.borders == {both.data_ptr()}
    assert list(caches.spans) == [(both.data_ptr(), 2 * size)]
    assert list(as_two.spans) == [(both.data_ptr(), size), (both[1].data_ptr(), size)]


def test_layers_of_several_groups_may_lie_in_the_same_memory() -> None:
    """The blocks' ids tell them apart: each has regions, a group and a window of its own, in memory registered once."""
    (storage, _) = cpu_caches().values()
    tensors = {"layer.0": storage, "layer.1": storage, "layer.2": storage}
    groups = {"layer.0": LayerGroup(0, 64), "layer.1": LayerGroup(1), "layer.2": LayerGroup(1)}

    caches = describe(tensors, num_blocks=6, block_tokens=16, groups=groups)

    assert [(region.name, region.group, region.window) for region in caches.regions] == [
        ("layer.0", 0, 64),
        ("layer.1", 1, 0),
    ]
    assert dict(caches.layer_of) == {"layer.0": 0, "layer.1": 1, "layer.2": 1}  # the last shares the KV of the second
    assert len(caches.spans) == 1


def test_a_drafters_layers_are_marked_and_not_hooked() -> None:
    """Each of its passes would call the hook: they are handed over when the step has ended."""
    caches = describe(cpu_caches(), num_blocks=6, block_tokens=16, drafter="small", draft_layers=frozenset({"layer.1"}))

    assert [(region.name, region.drafter) for region in caches.regions] == [("layer.0", ""), ("layer.1", "small")]
    assert dict(caches.layer_of) == {"layer.0": 0}
    assert caches.num_layers == 2
