from dataclasses import replace
from unittest.mock import Mock

import pytest

from baton.contracts.http import NODE_PATH
from baton.contracts.secret import ClusterSecret
from baton.node.middleware import NodeMiddleware
from tests.support.asgi import Exchange, Recorder, http
from tests.unit.node.gate import settings

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
    gate = NodeMiddleware(Recorder(), replace(settings(), secret=SECRET))
    exchange, connection = Exchange(http("GET", NODE_PATH, [("authorization", header)])), Mock()
    exchange.scope["extensions"] = {"baton.connection": connection}

    assert await gate._lets_in(exchange.scope, exchange.send) is enters

    assert connection.prove.called is enters  # such a connection makes way last
    assert gate._refusals.snapshot() == ({} if enters else {"bad_token": 1})
    assert [each["status"] for each in exchange.sent if "status" in each] == ([] if enters else [401])
