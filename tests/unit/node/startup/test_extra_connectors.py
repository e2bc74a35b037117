from typing import Any

import pytest

from baton.contracts.kv_transfer import Role
from baton.node.errors import StartRefusedError
from baton.node.startup.extra_connectors import refuse_unproven, wrap_multi_connector

BATON: dict[str, Any] = {
    "kv_connector": "BatonConnector",
    "kv_connector_module_path": "baton.kv_connector.connector",
    "kv_role": "kv_producer",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"layerwise": True},
}
SETTINGS = {"cpu_bytes_to_use": 1 << 30, "eviction_policy": "arc"}
OFFLOADING = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": SETTINGS}


def refused(*beside: dict[str, Any], flags: tuple[str, ...] = (), device: str = "cuda", vllm: str = "0.32.0") -> str:
    with pytest.raises(StartRefusedError) as caught:
        refuse_unproven(beside, flags, device, vllm)
    return str(caught.value)


def test_nothing_beside_is_fine_anywhere_and_what_is_proven_where_it_is() -> None:
    """Offloading by vLLM itself, on a CUDA device, with the settings that were looked at."""
    refuse_unproven((), ("-tp", "2"), "cpu", "0.28.0")
    refuse_unproven((OFFLOADING,), ("--dtype", "float32", "-tp", "1"), "cuda", "0.32.0")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("SimpleCPUOffloadConnector", "holds blocks that no request owns"),
        ("LMCacheConnectorV1", "loads KV inside the step that needs it"),
        ("NixlConnector", "a prompt is handed over in one way"),
        ("MultiConnector", "the node sets it itself"),
        ("TheirOwnConnector", "has not been proven"),
    ],
)
def test_every_other_connector_is_refused_by_name_with_the_reason(name: str, reason: str) -> None:
    said = refused({"kv_connector": name, "kv_connector_extra_config": {}})

    assert said.startswith(f"{name} cannot stand in `beside`: ")
    assert reason in said
    assert said.endswith("; OffloadingConnector can")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "must name its `kv_connector`"),
        ({"kv_connector": 5}, "must name its `kv_connector`"),
        (OFFLOADING | {"kv_role": "kv_producer", "engine_id": "x"}, "not engine_id, kv_role"),
        (OFFLOADING | {"kv_connector_module_path": "mine"}, "not kv_connector_module_path"),
        ({"kv_connector": "OffloadingConnector"}, "needs kv_connector_extra_config with cpu_bytes_to_use"),
        (OFFLOADING | {"kv_connector_extra_config": SETTINGS | {"spec_name": "X", "canonical_layout": 1}},
         "has not been proven with canonical_layout, spec_name, only with cpu_bytes_to_use, "),
        (OFFLOADING | {"kv_connector_extra_config": {}}, "must be a whole number of bytes, not None"),
        (OFFLOADING | {"kv_connector_extra_config": {"cpu_bytes_to_use": 0}}, "must be a whole number of bytes, not 0"),
        (OFFLOADING | {"kv_connector_extra_config": {"cpu_bytes_to_use": True}}, "bytes, not True"),
        (OFFLOADING | {"kv_connector_extra_config": {"cpu_bytes_to_use": "4G"}}, "bytes, not '4G'"),
    ],
)  # fmt: skip
def test_a_setting_that_was_not_looked_at_is_refused(entry: dict[str, Any], said: str) -> None:
    assert said in refused(entry)


def test_two_connectors_are_refused() -> None:
    """How they treat each other has not been looked at."""
    assert "may name one connector" in refused(OFFLOADING, OFFLOADING)


@pytest.mark.parametrize(
    ("around", "said"),
    [
        ({"vllm": "0.33.0"}, "proven with vLLM 0.32.x, and this is 0.33.0"),
        ({"device": "cpu"}, "needs a CUDA device: vLLM cannot copy KV off a cpu device"),
        ({"flags": ("-tp", "2")}, "leave out --tensor-parallel-size, or `beside`"),
        ({"flags": ("--pipeline-parallel-size=2",)}, "leave out --pipeline-parallel-size, or `beside`"),
        ({"flags": ("-dp", "2")}, "leave out --data-parallel-size, or `beside`"),
        ({"flags": ("--no_enable_prefix_caching",)}, "leave out --no-enable-prefix-caching, or `beside`"),
    ],
)
def test_a_place_where_it_is_not_proven_is_refused(around: dict[str, Any], said: str) -> None:
    assert said in refused(OFFLOADING, **around)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_alone_batons_connector_is_not_wrapped(role: Role) -> None:
    assert wrap_multi_connector(BATON, (), role) is BATON


OWN = BATON | {"kv_connector_extra_config": {"layerwise": True, "has_neighbours": True}}
OTHER = OFFLOADING | {"kv_role": "kv_both"}


@pytest.mark.parametrize(
    ("role", "children"),
    [
        # A block from the host would keep the rest of a prompt from being received; and the other one does not know of blocks that a peer writes to.
        ("decode", [OWN, OTHER | {"kv_connector_module_path": "baton.kv_connector.vllm_compat.fenced_offloading"}]),
        ("prefill", [OTHER, OWN]),  # a layer is handed over when no other connector will change it
    ],
)
def test_connectors_are_asked_in_the_order_that_the_hand_off_needs(role: Role, children: list[dict[str, Any]]) -> None:
    """The outer configuration says when blocks may be given away, and what follows a failed load."""
    assert wrap_multi_connector(BATON, (OFFLOADING,), role) == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": children},
    }
