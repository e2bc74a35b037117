"""A prefill node's part of a stream: its token named for the proxy, and held until the decode node has room for what follows."""

from baton.contracts.http import TOKEN_COMMENT
from baton.node.connector.connector_channel import Outcomes
from baton.node.http.asgi import Message, Send


def begin_stream(send: Send, transfer_id: str, outcomes: Outcomes, wait_s: float) -> Send:
    """Return a `send` that puts a comment with the token's id before the first event of a stream.

    Args:
        send: the server's.
        transfer_id: of the request.
        outcomes: what the connector says.
        wait_s: how long the stream waits for the decode node's reservation.
    """
    begun = False

    async def send_named(message: Message) -> None:
        nonlocal begun
        body = message.get("body", b"")
        if not begun and body and not body.startswith(b":"):  # a comment keeps the connection open
            begun = True
            token = outcomes.take_token(transfer_id)
            if token is not None:
                await outcomes.wait_until_reserved(transfer_id, wait_s)
                message = {**message, "body": TOKEN_COMMENT + b"%d\n\n" % token + body}
        await send(message)

    return send_named
