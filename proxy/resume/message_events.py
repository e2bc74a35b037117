"""Events of `/v1/messages`: what is new in them. Pure."""

from typing import Any, Final

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.resume.events import parse
from baton.proxy.resume.known import Known, label_of
from baton.proxy.resume.record import Dialect

_TEXTS: Final = ("text", "thinking", "partial_json")
_BEGINNINGS: Final = (b"event: message_start\n", b"event: content_block_start\n", b"event: ping\n")
_DELTA: Final = b"event: content_block_delta\n"
_SIGNATURE: Final = b'"signature_delta"'  # the end of a block of thoughts


class MessageEvents(Dialect):
    last_events = (b"event: message_stop\n",)
    failure_events = (b"event: error\n",)

    def failure_in(self, event: bytes) -> StreamBrokenError | None:
        kind = (parse(event).get("error") or {}).get("type")
        if kind == "invalid_request_error":
            return None
        return StreamBrokenError(FailureKind.STATUS, f"it sent an error {kind}")

    def ends_prefill_part(self, event: bytes) -> bool:
        """Whether a prefill node's part of the stream ends before this event: its end looks like that of an answer."""
        return not event.startswith(_BEGINNINGS) and (not event.startswith(_DELTA) or _SIGNATURE in event)

    def names_in(self, body: dict[str, Any]) -> dict[str, object]:
        message = body.get("message") or {}
        return {"id": message["id"]} if "id" in message else {}

    def take_new(self, body: dict[str, Any], known: Known) -> bool:
        kind, index, delta = body["type"], body.get("index", 0), body.get("delta") or {}
        texts = [name for name in _TEXTS if name in delta]
        if kind == "ping":
            return not known.repeats
        if not texts:
            return known.is_new((index, kind, str(delta.get("type"))), label_of(body.get("content_block")))
        for name in texts:
            if delta[name]:
                delta[name] = known.take_text((index, name), delta[name])
        return any(delta[name] for name in texts)
