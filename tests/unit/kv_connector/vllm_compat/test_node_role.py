"""Which role a node has, by its own settings before vLLM's word."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.contracts.kv_transfer import Role
from baton.kv_connector.vllm_compat.node_role import role_of

OTHER = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 1}}


def transfer(extra: dict[str, Any], *, producer: bool) -> Any:
    return SimpleNamespace(kv_connector_extra_config=extra, is_kv_producer=producer)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_nodes_own_word_counts(role: Role) -> None:
    """To vLLM a node that sends and receives is a producer, and so is one with other connectors beside ours."""
    own = {"kv_connector": "BatonConnector", "kv_connector_extra_config": {"role": role}}

    assert role_of(transfer({"role": role}, producer=True)) == role
    assert role_of(transfer({"connectors": [OTHER, own]}, producer=True)) == role
    assert role_of(transfer({"connectors": [own, OTHER]}, producer=True)) == role


@pytest.mark.parametrize(("producer", "role"), [(True, "prefill"), (False, "decode")])
def test_vllms_word_counts_where_the_node_has_said_nothing(*, producer: bool, role: Role) -> None:
    assert role_of(transfer({}, producer=producer)) == role
