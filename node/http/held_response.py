"""What of a response waits until the connector has told of its transfer: on D the head, on P a stream's first event.

Whether a transfer failed is known before the first token, but not before the response's status line would be sent:
so the head, whose header says how an answer was made, waits for the first piece of the body, and nothing after it.
"""

from baton.contracts.http import DISAGGREGATED, PATH_HEADER, REASON_HEADER
from baton.node.connector.connector_channel import Outcomes
from baton.node.http.asgi import Message, Send
from baton.node.http.token_ids import TokenLog

_REASON_MAX_CHARS = 200
# How names of events of `/v1/messages` and `/v1/responses` end that hold a piece of the answer.
_PIECES = (b"content_block_start", b"content_block_delta", b".added", b".delta")


def name_path(send: Send, transfer_id: str, outcomes: Outcomes) -> Send:
    """Return a `send` that adds the path header to a successful answer."""
    held: list[Message] = []

    async def send_named(message: Message) -> None:
        if message["type"] == "http.response.start":
            held.append(message)
            return
        if held:
            await send(_named(held.pop(), transfer_id, outcomes))
        await send(message)

    return send_named


def _named(start: Message, transfer_id: str, outcomes: Outcomes) -> Message:
    if start["status"] >= 400:
        return start
    outcome = outcomes.take(transfer_id)
    added = [(PATH_HEADER.encode(), (outcome.path if outcome else DISAGGREGATED).encode())]
    if outcome and outcome.reason:
        added.append((REASON_HEADER.encode(), _header_text(outcome.reason)))
    return {**start, "headers": [*start.get("headers", ()), *added]}


def _header_text(text: str) -> bytes:
    printable = "".join(char if " " <= char <= "~" else " " for char in text)
    return printable[:_REASON_MAX_CHARS].strip().encode("ascii")


def hold_stream(send: Send, transfer_id: str, outcomes: Outcomes, wait_s: float, log: TokenLog) -> Send:
    """Return a `send` that holds a prefill node's first event for `wait_s`, until the decode node has reserved blocks.

    `log` is of the stream's tokens: an answer that has ended by itself needs no decode node, nor does an error. Where the
    node ends an answer that goes on elsewhere, vLLM makes text and blocks of what it has held back for stop strings and
    parsers: of the typed streams they are left out, what follows them ends the part. (In the others they are in the event that ends it.)
    """
    begun = False

    async def send_later(message: Message) -> None:
        nonlocal begun
        body = message.get("body", b"")
        if log.is_cut and _is_of_the_answer(body):
            return
        if not begun and log.goes_on and body and not body.startswith(b":"):  # a comment keeps the connection open
            begun = True
            await outcomes.wait_until_reserved(transfer_id, wait_s)
        await send(message)

    return send_later


def _is_of_the_answer(event: bytes) -> bool:
    """Whether an event of a typed stream begins or continues a piece of the answer."""
    return event.startswith(b"event: ") and event.partition(b"\n")[0].endswith(_PIECES)
