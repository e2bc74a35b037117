import logging
from types import SimpleNamespace
from typing import Any

import pytest

from baton.contracts.http import NODE_PATH
from baton.contracts.secret import ClusterSecret
from baton.kv_connector.telemetry.refusals import Refusals
from baton.node.http.bearer import BearerGate

OLD = b"the secret that is being replaced"
SECRET = ClusterSecret(b"the secret of this cluster", OLD)
TOKEN = SECRET.node_token()


@pytest.mark.parametrize(
    ("header", "enters"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer {TOKEN}", True),
        (f"Bearer {ClusterSecret(OLD).node_token()}", True),
        (f"Basic {TOKEN}", False),
        (TOKEN, False),
        ("Bearer", False),
        (f"Bearer {TOKEN}x", False),
        (f"Bearer {ClusterSecret(b'the secret of another cluster').node_token()}", False),
        ("", False),
    ],
)
async def test_the_token_is_shown_as_a_bearers(header: str, *, enters: bool) -> None:
    """Any other scheme, or none, is refused, counted, and told which one is wanted."""
    refusals = Refusals(logging.getLogger(__name__))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    proofs: list[bool] = []
    connection = SimpleNamespace(prove=lambda: proofs.append(True))
    scope: dict[str, Any] = {"type": "http", "path": NODE_PATH, "headers": [(b"authorization", header.encode())]}
    scope["extensions"] = {"baton.connection": connection}

    assert await BearerGate(SECRET, refusals).lets_in(scope, send) is enters

    assert proofs == [True] * enters  # such a connection makes way last
    assert refusals.snapshot() == ({} if enters else {"bad_token": 1})
    assert [each["status"] for each in sent if "status" in each] == ([] if enters else [401])
