"""Joins the answer that goes on to what the client has: one stream, one id, right usage. Pure.

First comes what the client has already. It is compared and left out; if it differs, the answer is another one, and the
stream cannot go on. Then each event gets the name and the shape of the first answer's, and passes through the record
like those before it, so that this leg may break too.
"""

from typing import Any, Final

from baton.proxy.errors import FailureKind, StreamBrokenError
from baton.proxy.resume.continuation import CannotFollowError, Continuation
from baton.proxy.resume.events import DONE, ERROR, Piece, Splitter, encode, parse
from baton.proxy.resume.record import Record, nodes_own_error
from baton.proxy.resume.rules import NotResumableReason

_LOGPROB_LISTS: Final = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


class StreamSplicer:
    """One leg that goes on; how an event becomes the client's depends on the way."""

    def __init__(self, following: Continuation, record: Record) -> None:
        self._following = following
        self._record = record
        self._text = following.repeated_text  # still to come again
        self._empty_events = following.empty_events  # likewise, after that text
        self._name = {name: following.original.body[name] for name in ("id", "object", "created", "model")}
        self._splitter = Splitter()
        record.restart()

    def take(self, data: bytes) -> bytes:
        """Return what the client gets for some bytes, possibly nothing.

        Raises:
            CannotFollowError: the answer differs from what the client has.
        """
        return b"".join(map(self._take, self._splitter.whole(data)))

    def _take(self, event: bytes) -> bytes:
        if self._record.broken:
            return b""
        if event.startswith(DONE):
            if self._text:
                raise CannotFollowError(NotResumableReason.DIFFERS)
            return self._record.pass_on(event)
        if event.startswith(ERROR):
            refused = StreamBrokenError(FailureKind.REFUSED, "another node would not go on")
            self._record.broken = nodes_own_error(event) or refused
            return b""
        new = self._renew(parse(event))
        if new is None:
            return b""
        passed = self._record.pass_on(encode(new))
        return b"" if self._is_known(new) else passed

    def _renew(self, piece: Piece) -> dict[str, Any] | None:
        """Return an event as the client is to have it; None if it has it already."""
        raise NotImplementedError

    def _is_known(self, new: dict[str, Any]) -> bool:
        """Whether the client has an event that says nothing: so many of those were sent as the last ones."""
        choice: dict[str, Any] = next(iter(new["choices"]), {})
        says_nothing = choice.get("text", choice.get("delta", {}).get("content")) == ""
        if not self._empty_events or not says_nothing or choice["finish_reason"] is not None:
            return False
        self._empty_events -= 1
        return True

    def _new_text(self, said: str) -> str:
        """Take away what the client has."""
        known = min(len(self._text), len(said))
        if said[:known] != self._text[:known]:
            raise CannotFollowError(NotResumableReason.DIFFERS)
        self._text = self._text[known:]
        return said[known:]


class ReplaySeam(StreamSplicer):
    """The same answer once more: what is new is what comes after as much text as was sent."""

    def _renew(self, piece: Piece) -> dict[str, Any] | None:
        body = piece.body | self._name
        choice = piece.choice
        if choice is None:
            return body
        if self._following.ended:
            self._new_text(piece.text)
            return None
        repeats = bool(self._text)
        text = self._new_text(piece.text)
        if not text and not piece.ends and (repeats or "role" in choice.get("delta", ())):
            return None
        said: dict[str, Any] = {"text": text} if "text" in choice else {"delta": {"content": text}}
        return body | {"choices": [choice | said]}


class TokenSeam(StreamSplicer):
    """A completion of token ids, told as the answer that it goes on with."""

    def __init__(self, following: Continuation, record: Record, *, chat: bool) -> None:
        super().__init__(following, record)
        self._ids = list(following.repeated_ids)  # still to come again
        self._chat = chat

    def _renew(self, piece: Piece) -> dict[str, Any] | None:
        body = piece.body | self._name
        if piece.body.get("usage"):
            body["usage"] = self._whole_usage(piece.body["usage"])
        if piece.choice is None:
            return body
        known = min(len(self._ids), len(piece.ids))
        if piece.ids[:known] != self._ids[:known]:
            raise CannotFollowError(NotResumableReason.DIFFERS)
        del self._ids[:known]
        text = self._new_text(piece.text)
        if 0 < known == len(piece.ids) and not text and not piece.ends:
            return None
        return body | {"choices": [self._choice(piece.choice, text, piece.ids[known:], known)]}

    def _choice(self, choice: dict[str, Any], text: str, ids: list[int], known: int) -> dict[str, Any]:
        ending = {"finish_reason": choice["finish_reason"]}
        if not self._chat:
            logprobs = self._moved(choice.get("logprobs"), known)
            ending |= {"stop_reason": choice.get("stop_reason"), "prompt_token_ids": None, "token_ids": ids}
            return {"index": 0, "text": text, "logprobs": logprobs, **ending}
        if choice["finish_reason"] is not None:
            ending["stop_reason"] = choice.get("stop_reason")
        return {"index": 0, "delta": {"content": text}, "logprobs": None, **ending, "token_ids": ids}

    def _moved(self, logprobs: dict[str, Any] | None, known: int) -> dict[str, Any] | None:
        if not logprobs:
            return logprobs
        left = {name: (logprobs.get(name) or [])[known:] for name in _LOGPROB_LISTS}
        left["text_offset"] = [offset + self._following.text_offset for offset in left["text_offset"]]
        return logprobs | left

    def _whole_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Count the original prompt as the prompt, and everything after it as the answer."""
        given, prompt = self._following.given_tokens, self._following.prompt_tokens
        whole = usage | {"prompt_tokens": prompt, "completion_tokens": usage["completion_tokens"] + given}
        details = usage.get("prompt_tokens_details")
        if details and details.get("cached_tokens") is not None:
            cached = min(details["cached_tokens"], prompt)
            whole["prompt_tokens_details"] = details | {"cached_tokens": cached}
        return whole
