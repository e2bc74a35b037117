"""A prefill node's part of a stream: held until the decode node has room for what follows."""

from baton.node.connector.connector_channel import Outcomes
from baton.node.http.asgi import Message, Send
from baton.node.http.token_ids import TokenLog


def hold_stream(send: Send, transfer_id: str, outcomes: Outcomes, wait_s: float, log: TokenLog) -> Send:
    """Return a `send` that holds the first event of a stream for `wait_s`, until the decode node has reserved blocks.

    `log` is of the stream's tokens: an answer that has ended by itself needs no decode node, nor does an error.
    """
    begun = False

    async def send_later(message: Message) -> None:
        nonlocal begun
        body = message.get("body", b"")
        if not begun and body and not body.startswith(b":"):  # a comment keeps the connection open
            begun = True
            if log.goes_on:
                await outcomes.wait_until_reserved(transfer_id, wait_s)
        await send(message)

    return send_later
