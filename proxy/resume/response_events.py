"""Events of `/v1/responses`: what is new in them. Pure.

Each node draws the ids of an answer's items, and numbers its events: they are given the ids and numbers of the client's
stream.
"""

from typing import Any, Final

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.resume.events import parse
from baton.proxy.resume.known import Key, Known, label_of
from baton.proxy.resume.record import Dialect

_IDS: Final = frozenset(("id", "call_id"))  # of an item
_PLACE: Final = ("output_index", "content_index", "summary_index")


class ResponseEvents(Dialect):
    last_events = (b"event: response.completed\n", b"event: response.incomplete\n")
    failure_events = (b"event: error\n", b"event: response.failed\n")

    def __init__(self) -> None:
        self._items: dict[tuple[int, str], str] = {}  # the ids that the client has
        self._theirs: dict[str, str] = {}  # a further node's id → the client's
        self._created_at: object = None
        self._next = 0  # number of an event
        self._is_further = False  # the leg

    def failure_in(self, event: bytes) -> StreamBrokenError | None:
        body = parse(event)
        error = body.get("error") or (body.get("response") or {}).get("error") or body
        code = error.get("code")
        if code == "invalid_request_error" or (isinstance(code, int) and code < 500):
            return None
        return StreamBrokenError(FailureKind.STATUS, f"it sent an error {code}")

    def ends_prefill_part(self, event: bytes) -> bool:
        """Whether a prefill node's part of the stream ends before this event: its end looks like that of an answer."""
        return self.is_last(event) or event.partition(b"\n")[0].endswith(b".done")

    def begin_leg(self, is_further: bool) -> None:
        self._is_further = is_further

    def names_in(self, body: dict[str, Any]) -> dict[str, object]:
        response = body.get("response") or {}
        return {"id": response["id"]} if "id" in response else {}

    def opening_of(self, _key: Key) -> bytes:
        """As they are numbered, no two events are alike."""
        return b'"delta":"'

    def take_new(self, body: dict[str, Any], known: Known) -> bool:
        is_new = self._take(body, known)
        if not self._is_further:
            self._next = body.get("sequence_number", self._next) + 1
        elif is_new:
            body["sequence_number"] = self._next
            self._next += 1
        return is_new

    def _take(self, body: dict[str, Any], known: Known) -> bool:
        kind, place = body["type"], tuple(body.get(name, 0) for name in _PLACE)
        item = body.get("item") or {}
        if kind.endswith("output_item.added"):
            for name in _IDS.intersection(item):
                self._theirs[item[name]] = self._items.setdefault((place[0], name), item[name])
        self._name(body)
        if not kind.endswith(".delta"):
            return known.is_new((kind, *place), label_of(item) if kind.endswith(".added") else "")
        entries = known.take_entries((*place, kind, "logprobs"), len(body.get("logprobs") or ()))
        if entries:
            body["logprobs"] = body["logprobs"][entries:]
        if piece := body["delta"]:
            body["delta"] = known.take_text((*place, kind), piece)
        return bool(body["delta"] or body.get("logprobs"))

    def _name(self, body: dict[str, Any]) -> None:
        """Give an event the ids that the client knows."""
        if "item_id" in body:
            body["item_id"] = self._theirs.get(body["item_id"], body["item_id"])
        response = body.get("response") or {}
        for item in [body.get("item") or {}, *response.get("output", ())]:
            for name in _IDS.intersection(item):
                item[name] = self._theirs.get(item[name], item[name])
        if "created_at" in response:
            self._created_at = self._created_at or response["created_at"]
            response["created_at"] = self._created_at
