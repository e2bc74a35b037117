"""The exception tree."""

import pytest

from baton.kv_connector import errors


@pytest.mark.parametrize("name", ["ConfigError", "LayoutError", "BlockOutOfRange", "EngineError", "ProtocolError"])
def test_one_root_catches_everything(name: str) -> None:
    """A caller that cannot go on needs to know one name only."""
    assert issubclass(getattr(errors, name), errors.ConnectorError)
    assert issubclass(errors.BlockOutOfRange, errors.LayoutError)
