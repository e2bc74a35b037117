from pathlib import Path
from unittest.mock import Mock

import pytest

from baton.contracts.configuration.schema import BatonConfig
from baton.proxy import server
from baton.proxy.server import StartError


@pytest.mark.parametrize(("size", "starts"), [(90, True), (91, False), (107, False)])
def test_the_workers_directory_has_a_name_that_sockets_in_it_can_have(
    size: int, *, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux takes 108 bytes, and cuts off nothing."""
    supervisor = Mock()
    monkeypatch.setattr(server, "Supervisor", supervisor)
    monkeypatch.setattr(server, "_listen", Mock(return_value=[]))
    directory = Path("/" + "x" * (size - 1))

    if starts:
        server._supervise(BatonConfig(), Mock(), directory)
    else:
        with pytest.raises(StartError, match="set TMPDIR to a shorter one"):
            server._supervise(BatonConfig(), Mock(), directory)

    assert supervisor.return_value.run.called is starts
