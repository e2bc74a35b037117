"""Which order inside a block the connector asks vLLM for."""

from types import SimpleNamespace
from typing import Any

import pytest

from baton.kv_connector.connector import BatonConnector


def engine(*, mla: bool = False, beside: bool = False) -> Any:
    """As much of an engine's configuration as is looked at."""
    return SimpleNamespace(
        model_config=SimpleNamespace(use_mla=mla),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"has_neighbours": True} if beside else {}),
    )


@pytest.mark.parametrize(
    ("config", "layout"),
    [(engine(), "HND"), (engine(mla=True), None), (engine(beside=True), None)],
    ids=["heads first", "a latent cache has no heads", "the connector beside asks, by a younger name"],
)
def test_heads_come_first(config: Any, layout: str | None) -> None:
    """Two names for one order would be refused by vLLM."""
    assert BatonConnector.get_required_kvcache_layout(config) == layout
