"""A connector that says what a test wants, and a node's API in front of it."""

import logging
from typing import Any, cast

import msgspec

from baton.contracts.kv_transfer import Role
from baton.kv_connector.telemetry.refusals import Refusals
from baton.node.connector.connector_channel import ConnectorClient, Snapshots
from baton.node.errors import ConnectorSilentError, NodeError
from baton.node.http.api import NodeApi
from tests.support.asgi import Exchange, http
from tests.support.described import fingerprint

FINGERPRINT = msgspec.to_builtins(fingerprint(128))
REGION = {"name": "l0", "layer": 0, "base_addr": 4096, "block_bytes": 64, "stride_bytes": 64, "num_blocks": 9}
WORKER: dict[str, Any] = {
    "incarnation": "00ff",
    "fingerprint": FINGERPRINT,
    "regions": [REGION],
    "num_blocks": 9,
    "layer_sync": "event",
    "transfers": [],
    "totals": {"pushed_bytes": 1},
}
SCHEDULER: dict[str, Any] = {"engines": 1, "control_addresses": ["tcp://10.0.0.5:9100"]}


class FakeConnector:
    def __init__(self, worker: dict[str, Any] | None = None, scheduler: dict[str, Any] | None = None) -> None:
        self.worker = worker
        self.scheduler = SCHEDULER if scheduler is None else scheduler
        self.problem: NodeError = ConnectorSilentError("no snapshot")

    async def both(self) -> Snapshots:
        if self.worker is None:
            raise self.problem
        return Snapshots(self.scheduler, self.worker)

    async def flows(self, transfer_id: str) -> list[dict[str, Any]]:
        return [{"transfer_id": transfer_id, "written": [[0.5, 0]]}]

    async def integrity(self) -> dict[str, Any]:
        if self.worker is None:
            raise self.problem
        return {"ok": False, "findings": [{"blocks": ["2-3"]}]}


def node_api(connector: FakeConnector, role: Role = "prefill") -> NodeApi:
    refusals = Refusals(logging.getLogger(__name__))
    return NodeApi(role=role, model="/m", connector=cast("ConnectorClient", connector), refusals=refusals)


async def ask(api: NodeApi, path: str, method: str = "GET", app: object = None) -> Exchange:
    path, _, query = path.partition("?")
    scope = http(method, path)
    scope.update(app=app, query_string=query.encode(), server=("10.0.0.5", 8100))
    exchange = Exchange(scope)
    await api.answer(scope, exchange.receive, exchange.send)
    return exchange
