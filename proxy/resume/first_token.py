"""A stream whose first token comes from the prefill node, and goes on with the decode node's. Pure.

Both nodes stream what one server would: the prefill node up to the first token, the decode node from the start. Of the decode node's
stream is left out what the client has: compared by what events say, since vLLM may put several tokens into one event.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from baton.contracts.http import TOKEN_COMMENT
from baton.proxy.errors import StreamBrokenError
from baton.proxy.request.eligibility import has_several_prompts
from baton.proxy.request.endpoints import CHAT, COMPLETIONS, MESSAGES
from baton.proxy.request.fields import is_false, is_on, is_one, is_set
from baton.proxy.request.parse import ClientRequest
from baton.proxy.resume.continuation import CannotFollowError
from baton.proxy.resume.events import COMMENT, DONE, ERROR, Splitter, encode, parse
from baton.proxy.resume.record import Record, nodes_own_error
from baton.proxy.resume.rules import NotResumableReason

# What a prefill node ends its part with (`relays` of `contracts/kv_transfer.py`); no text can hold it, a string's quotes are escaped.
_PART_ENDS: Final = b'"finish_reason":"abort"'
_TEXTS: Final = frozenset(("content", "reasoning", "reasoning_content", "refusal", "text", "arguments"))
_SAID_ONCE: Final = frozenset(("role", "id", "type", "name"))  # of a message or of a tool call
_IDS: Final = frozenset(("token_ids", "prompt_token_ids"))


class KnownEvent(NamedTuple):
    """An event that the client has."""

    body: dict[str, Any]
    tokens: int  # how many it holds


def why_not_relayed(request: ClientRequest) -> str:
    """Say why the prefill node's token is not sent to the client before the decode node's stream; "" if it is.

    The values are labels of `baton_first_tokens_total`.
    """
    fields = request.fields
    if not is_on(fields, "stream"):
        return "whole"
    if request.endpoint not in (CHAT, COMPLETIONS, MESSAGES):
        return "endpoint"
    if (is_set(fields, "n") and not is_one(fields, "n")) or has_several_prompts(fields):
        return "several"
    if is_set(fields, "echo") and not is_false(fields, "echo"):
        return "echo"
    return ""


class PrefillPart:
    """The prefill node's part of a stream, event by event."""

    def __init__(self, record: Record | None) -> None:
        """`record`: the stream's, which remembers this part too."""
        self.known: list[KnownEvent] = []
        self.ids: tuple[int, ...] = ()  # of the tokens in them, as the node says in comments
        self.ended = False
        self.is_whole = False  # the answer has ended with it
        self.broken: StreamBrokenError | None = None
        self._record = record
        self._splitter = Splitter()

    def take(self, data: bytes) -> bytes:
        """Return what the client gets of some bytes."""
        return b"".join(map(self._take, self._splitter.whole(data)))

    def close(self) -> None:
        """Take no more: the decode node's stream has begun."""
        self.ended = True

    def _take(self, event: bytes) -> bytes:
        if self.ended:
            return b""
        if event.startswith(TOKEN_COMMENT):
            self.ids += (int(event.removeprefix(TOKEN_COMMENT)),)
        return b"" if event.startswith(COMMENT) else self._pass_on(event)

    def _pass_on(self, event: bytes) -> bytes:
        if event.startswith(ERROR):
            self.broken, self.ended = nodes_own_error(event), True
            return b""
        if _PART_ENDS in event:
            self.ended = True
            return b""
        passed = event if self._record is None else self._record.pass_on(event)
        if event.startswith(DONE):
            self.ended = self.is_whole = True
        elif passed:
            self.known.append(KnownEvent(parse(passed).body, len(parse(event).ids)))
        return passed


class FirstTokenSplicer:
    """Takes away from a decode node's stream what the client has from the prefill node."""

    def __init__(
        self,
        known: Sequence[KnownEvent],
        inner: Callable[[bytes], bytes] | None,
        goes_on: Callable[[], None],
        *,
        ids: Sequence[int] = (),
    ) -> None:
        """`inner`: what the rest passes through; `goes_on` is called once, before the first event that the client does not have.

        `ids` are those of the tokens in `known`, as far as the prefill node has named them.
        """
        self._ids = list(ids)
        self._known = list(reversed(known))
        self._inner = inner
        self._goes_on = goes_on
        self._splitter = Splitter()
        self._created = _created(known[0].body)
        self._theirs = b""  # the same of the decode node, if that began in another second
        self._last = b""  # event
        self.went_on = False

    @property
    def ended(self) -> bool:
        """Whether the stream's last event has passed."""
        return self._last.startswith(DONE)

    def take(self, data: bytes) -> bytes:
        """Return what the client gets of some bytes.

        Raises:
            CannotFollowError: the answer is not the one that the client has part of.
            StreamBrokenError: the node has failed before it added anything.
        """
        events = self._splitter.whole(data)
        if not events:
            return b""
        self._last = events[-1]
        if not self.went_on or self._theirs:
            events = [left for event in events if (left := self._take(event))]
            if not self.went_on and not all(event.startswith(COMMENT) for event in events):
                self.went_on = True
                self._goes_on()
        passed = b"".join(events)
        return passed if self._inner is None or not passed else self._inner(passed)

    def _take(self, event: bytes) -> bytes:
        if event.startswith(ERROR) and not self.went_on:
            if broken := nodes_own_error(event):
                raise broken  # the client has the first token and nothing more: another node can start with it
            self._known.clear()
        if not self._known or event.startswith(COMMENT):
            return event.replace(self._theirs, self._created, 1) if self._theirs else event
        if event.startswith(DONE):
            raise CannotFollowError(NotResumableReason.DIFFERS)
        body, known = parse(event).body, self._known.pop()
        theirs = _created(body)
        self._theirs = theirs if theirs != self._created else b""
        said = [token for choice in body["choices"] for token in choice.get("token_ids") or ()][: known.tokens]
        if said and said != self._ids[: len(said)]:
            raise CannotFollowError(NotResumableReason.DIFFERS)
        if _without_ids(body) == _without_ids(known.body):
            return b""
        rest = _subtract_event(body, known)
        return encode(rest | {"created": known.body["created"]}) if rest is not None else b""


def _created(body: Mapping[str, Any]) -> bytes:
    return b'"created":%d,' % body["created"] if "created" in body else b""


def _without_ids(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in choice.items() if name not in _IDS} for choice in body["choices"]]


def _subtract_event(body: dict[str, Any], known: KnownEvent) -> dict[str, Any] | None:
    """Return what an event adds to one that the client has; None if nothing."""
    if len(body["choices"]) != 1:
        raise CannotFollowError(NotResumableReason.DIFFERS)
    choice = _subtract(body["choices"][0], known.body["choices"][0])
    if "prompt_token_ids" in choice:
        choice["prompt_token_ids"] = None  # those stand in the first event alone
    if choice.get("token_ids"):
        choice["token_ids"] = choice["token_ids"][known.tokens :]
    said = choice.get("delta", choice)
    adds = choice["finish_reason"] is not None or any(said.get(name) for name in (*_TEXTS, "tool_calls"))
    return body | {"choices": [choice]} if adds else None


def _subtract(new: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    rest = dict(new)
    for name, value in known.items():
        if name in _TEXTS and value:
            if not (new.get(name) or "").startswith(value):
                raise CannotFollowError(NotResumableReason.DIFFERS)
            rest[name] = new[name][len(value) :]
        elif name in _SAID_ONCE:
            rest.pop(name, None)
        elif name == "logprobs" and value and new.get(name):
            lists = {
                key: many[len(value[key]) :] for key, many in new[name].items() if isinstance(value.get(key), list)
            }
            rest[name] = new[name] | lists
        elif name in ("delta", "function") and value:
            rest[name] = _subtract(new.get(name) or {}, value)
        elif name == "tool_calls" and value:
            rest[name] = _subtract_calls(new.get(name) or [], value)
    return rest


def _subtract_calls(new: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if len(new) < len(known):
        raise CannotFollowError(NotResumableReason.DIFFERS)
    rests = [_subtract(one, other) for one, other in zip(new, known, strict=False)]
    adds = [rest for rest in rests if rest.get("function", {}).get("arguments")]
    return adds + [dict(call) for call in new[len(known) :]]
