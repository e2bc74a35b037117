"""How much of an answer a client has, and how much of that a further leg has not said again yet. Pure.

Of a text its length and checksum are kept, not the text. A *key* names what an event adds to: `(choice, "content")`,
`(output, part, "text")`, …
"""

from typing import Any, Final
from zlib import crc32

from baton.proxy.resume.rules import CannotFollowError, NotResumableReason

Key = tuple[int | str, ...]

# What is said before the first token.
_BEFORE_TOKENS: Final = frozenset(("role", "prompt", "message_start", "response.created", "response.in_progress"))


def label_of(piece: dict[str, Any] | None) -> str:
    """Return what kind of block or item begins, and the name of its tool."""
    return f"{piece.get('type')} {piece.get('name')}" if piece else ""


class Text:
    """A text that comes in pieces."""

    __slots__ = ("checksum", "length")

    def __init__(self) -> None:
        self.length = 0  # characters
        self.checksum = 0  # of its UTF-8

    def add(self, piece: str) -> None:
        self.length += len(piece)
        self.checksum = crc32(piece.encode(), self.checksum)


class Known:
    """What a client has of one answer."""

    def __init__(self) -> None:
        self.touched: list[Key] = []  # since it was cleared last
        self._texts: dict[Key, Text] = {}
        self._counts: dict[Key, int] = {}
        self._names: set[Key] = set()
        self._labels: dict[Key, str] = {}  # of some of these
        # What has not come again: of texts the part that has.
        self._texts_left: dict[Key, Text] = {}
        self._counts_left: dict[Key, int] = {}
        self._names_left: set[Key] = set()

    def begin_again(self) -> None:
        """A leg begins that says everything from the start."""
        self._texts_left = {key: Text() for key in self._texts}
        self._counts_left = dict(self._counts)
        self._names_left = set(self._names)

    @property
    def is_empty(self) -> bool:
        """Whether the client has nothing."""
        return not (self._texts or self._counts or self._names)

    @property
    def has_tokens(self) -> bool:
        """Whether the client has something that tokens have said."""
        return bool(self._texts or self._counts) or any(_BEFORE_TOKENS.isdisjoint(key) for key in self._names)

    @property
    def repeats(self) -> bool:
        """Whether the leg has not said all of it again."""
        return bool(self._texts_left or self._names_left or self._counts_left)

    @property
    def misses_text(self) -> bool:
        return bool(self._texts_left)

    def text_of(self, key: Key) -> Text | None:
        """Return a text, to add to it; None if there is none of this key."""
        return self._texts.get(key)

    def count_of(self, key: Key) -> int:
        """Return how many entries of a list the client has."""
        return self._counts.get(key, 0)

    def take_text(self, key: Key, piece: str) -> str:
        """Take a piece of a text; return what of it is new."""
        self.touched.append(key)
        left = self._texts_left.get(key)
        if left is not None:
            whole = self._texts[key]
            known = piece[: whole.length - left.length]
            left.add(known)
            if left.length == whole.length:
                if left.checksum != whole.checksum:
                    raise CannotFollowError(NotResumableReason.DIFFERS)
                del self._texts_left[key]
            piece = piece[len(known) :]
        if piece:
            self._texts.setdefault(key, Text()).add(piece)
        return piece

    def take_entries(self, key: Key, count: int) -> int:
        """Take so many entries of a list; return how many of them, the first ones, the client has."""
        if not count:
            return 0
        self.touched.append(key)
        left = self._counts_left.get(key, 0)
        known = min(left, count)
        if known == left:
            self._counts_left.pop(key, None)
        else:
            self._counts_left[key] = left - known
        self._counts[key] = self._counts.get(key, 0) + count - known
        return known

    def has_pieces_of(self, choice: int) -> bool:
        """Whether the client has text or calls of a choice."""
        return any(key[0] == choice for key in self._texts) or any(key[:2] == (choice, "call") for key in self._names)

    def is_new(self, key: Key, label: str = "") -> bool:
        """Take what is said once; return whether the client does not have it.

        Raises `CannotFollowError` if an earlier leg has said it with another label, such as the name of a tool.
        """
        if label and self._labels.setdefault(key, label) != label:
            if key in self._names_left:
                raise CannotFollowError(NotResumableReason.DIFFERS)
            key = (*key, label)  # said beside the first one
        self.touched.append(key)
        if key in self._names:
            self._names_left.discard(key)
            return False
        self._names.add(key)
        return True
