"""A node's middleware, and bodies of legs for it."""

import json
from pathlib import Path
from typing import Any

from baton.contracts.kv_transfer import FIELD, Role, Start, TransferParams, sign
from baton.contracts.secret import ClusterSecret
from baton.node.http.asgi import App
from baton.node.middleware import GateSettings, NodeMiddleware

SECRET = ClusterSecret(b"the secret of this cluster")
TRANSFER = "a" * 32
COMPLETIONS = "/v1/completions"


def settings(role: Role = "decode") -> GateSettings:
    return GateSettings(
        role=role,
        roles=frozenset({role}),
        model="/m",
        secret=SECRET,
        runtime_dir=Path("/nowhere"),
        drain_timeout_s=30.0,
    )


def gate(app: App, role: Role = "decode") -> NodeMiddleware:
    return NodeMiddleware(app, settings(role))


def leg(role: Role = "decode", start: Start = (), **fields: Any) -> bytes:
    params = TransferParams(transfer_id=TRANSFER, role=role, peer="", start=start)
    return json.dumps({"prompt": "x", FIELD: sign(params, SECRET), **fields}).encode()
