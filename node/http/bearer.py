"""Who may use the node API: those who show the cluster's bearer token, of either secret while one is being replaced."""

from baton.contracts.secret import ClusterSecret
from baton.kv_connector.telemetry.refusals import Refusals, Refused
from baton.node.http.asgi import Scope, Send, header, send_error
from baton.node.http.connections import note_proof


class BearerGate:
    """Stands before every route of the node API."""

    def __init__(self, secret: ClusterSecret, refusals: Refusals) -> None:
        self._secret = secret
        self._refusals = refusals

    async def lets_in(self, scope: Scope, send: Send) -> bool:
        """Whether a request carries the token; one that does not is counted and answered."""
        scheme, _, token = header(scope, b"authorization").partition(b" ")
        if scheme.lower() == b"bearer" and self._secret.accepts_node_token(token):
            note_proof(scope)
            return True
        self._refusals.count(Refused.BAD_TOKEN, scope["path"])
        challenge = [(b"www-authenticate", b"Bearer")]
        await send_error(send, 401, "the node API needs the cluster's bearer token", challenge)
        return False
