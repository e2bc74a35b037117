"""What the node puts into `kv_connector_extra_config`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.errors import ConnectorConfigError

TRANSFER = TransferConfig(beat_interval_s=1.5, quarantine_max_share=0.25)
EXTRA: dict[str, Any] = {
    "runtime_dir": "/run/baton",
    "secret_file": "/run/secret",
    "weights": "w",
    "transfer": asdict(TRANSFER),
}


def test_settings_survive_the_way_through_vllm() -> None:
    """They travel as JSON inside vLLM's own configuration."""
    config = ConnectorConfig.from_extra(EXTRA)

    assert config.runtime_dir == Path("/run/baton")
    assert config.transfer == TRANSFER


def test_a_node_has_its_roles_side_or_both() -> None:
    """A decode node that sends hands layers over after the pass: it may have been captured whole."""
    for role in ("prefill", "decode"):
        one = ConnectorConfig.from_extra(EXTRA | {"role": role})
        both = ConnectorConfig.from_extra(EXTRA | {"role": role, "transfer": {"both_ways": True}})

        assert sorted(one.roles) == [role]
        assert sorted(both.roles) == ["decode", "prefill"]
        assert one.layer_sync == "auto"
        assert both.layer_sync == ("auto" if role == "prefill" else "forward")


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        (EXTRA | {"control_prot": 1}, "control_prot"),
        ({key: value for key, value in EXTRA.items() if key != "secret_file"}, "secret_file"),
    ],
)
def test_an_unknown_key_or_a_missing_one_is_named(extra: dict[str, Any], word: str) -> None:
    """Nothing is ignored silently; the node and the connector must be of the same version."""
    with pytest.raises(ConnectorConfigError, match=word):
        ConnectorConfig.from_extra(extra)
