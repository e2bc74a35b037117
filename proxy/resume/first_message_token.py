"""The same as `first_token.py` for a stream of `/v1/messages`. Pure.

Its events say of themselves what they are. How the answer ends is the decode node's to say: the end of the prefill node's part looks like that of
an answer.
"""

from typing import Any, Final

import msgspec

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.resume.continuation import CannotFollowError
from baton.proxy.resume.events import COMMENT
from baton.proxy.resume.first_token import FirstTokenSplicer, KnownEvent, PrefillPart
from baton.proxy.resume.rules import NotResumableReason

_BEGINNINGS: Final = (b"event: message_start\n", b"event: content_block_start\n")
_DELTA: Final = b"event: content_block_delta\n"
_SIGNATURE: Final = b'"signature_delta"'  # the end of a block of thoughts
_ERROR: Final = b"event: error\n"
_TEXTS: Final = ("text", "thinking", "partial_json")


class MessagePart(PrefillPart):
    """The prefill node's part."""

    def _pass_on(self, event: bytes) -> bytes:
        if event.startswith(_BEGINNINGS) or (event.startswith(_DELTA) and _SIGNATURE not in event):
            self.known.append(KnownEvent(_body(event), 0))
            return event
        self.ended = True
        if event.startswith(_ERROR):
            self.broken = _failed()
        return b""


class MessageSplicer(FirstTokenSplicer):
    """Takes away from a decode node's stream what the client has."""

    def _take(self, event: bytes) -> bytes:
        if event.startswith(_ERROR) and not self.went_on:
            raise _failed()
        if not self._known or event.startswith(COMMENT):
            return event
        body, known = _body(event), self._known.pop().body
        if body["type"] != known["type"] or _block(body) != _block(known):
            raise CannotFollowError(NotResumableReason.DIFFERS)
        if "delta" not in body:
            return b""
        rest = {name: value for name, value in body["delta"].items() if name not in _TEXTS}
        for name in _TEXTS:
            if name in body["delta"]:
                said = known["delta"].get(name, "")
                if not body["delta"][name].startswith(said):
                    raise CannotFollowError(NotResumableReason.DIFFERS)
                rest[name] = body["delta"][name][len(said) :]
        if not any(rest.get(name) for name in _TEXTS):
            return b""
        return _DELTA + b"data: " + msgspec.json.encode(body | {"delta": rest}) + b"\n\n"


def _failed() -> StreamBrokenError:
    return StreamBrokenError(FailureKind.STATUS, "it sent an error")


def _body(event: bytes) -> dict[str, Any]:
    return msgspec.json.decode(event.partition(b"\ndata: ")[2], type=dict[str, Any])


def _block(body: dict[str, Any]) -> tuple[object, object]:
    """Return what a block or a delta is; a tool call's id is drawn by each node."""
    return body.get("content_block", {}).get("type"), body.get("delta", {}).get("type")
