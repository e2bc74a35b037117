"""Frames of the control channel that almost are what they should be.

`Mutator` takes a valid frame and returns what is sent instead: one frame, several, an older one, or none yet. Every
mutation has a name, under which it is counted.
"""

import random
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from baton.kv_connector.protocol.messages import MAX_BLOCKS, MAX_OPEN
from tests.fuzz.values import flip_bits, mutate

TAGS = ("hello", "refuse", "introduce", "beat", "started", "reserve", "revoke", "commit", "fail", "", "of tomorrow")
BOMBS = (
    b"\xdd\xff\xff\xff\xff",  # a list of four billion
    b"\xdf\xff\xff\xff\xff",  # a map
    b"\xdb\xff\xff\xff\xff",  # a text
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\xc9\xff\xff\xff\xff\x01",  # an extension
    b"\x91" * 2_000,  # lists in lists
    b"\x81\xa1a" * 2_000,  # maps in maps
)
HISTORY = 4_096
HUGE = 0.0001  # share of the frames that are as long as can be: each costs as much as thousands of others


class Mutator:
    """Spoils frames, seeded."""

    def __init__(self, random_: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self.incarnations = [1, (1 << 63) - 1]  # that a frame may be made to name
        self._random = random_
        self._history: deque[bytes] = deque(maxlen=HISTORY)
        self._held_back: list[bytes] = []
        self._kinds: list[tuple[Callable[[bytes], list[bytes]], int]] = [
            (self._valid, 30),
            (self._values, 25),
            (self._bits, 10),
            (self._truncated, 5),
            (self._extended, 2),
            (self._bomb, 3),
            (self._another_type, 5),
            (self._twice, 4),
            (self._held_for_later, 4),
            (self._replayed, 4),
            (self._incarnation, 4),
            (self._noise, 1),
        ]

    def spoil(self, frame: bytes) -> list[bytes]:
        """Return what is sent in place of a valid frame."""
        kinds, weights = zip(*self._kinds, strict=True)
        kind = self._huge_list if self._random.random() < HUGE else self._random.choices(kinds, weights)[0]
        sent: list[bytes] = kind(frame)
        self.counts[kind.__name__.strip("_")] += len(sent)
        self._history.append(frame)
        return sent

    def _valid(self, frame: bytes) -> list[bytes]:
        return [frame]

    def _values(self, frame: bytes) -> list[bytes]:
        """Types swapped, numbers at their bounds, texts and lists too long, keys missing, doubled or new."""
        plain = msgspec.msgpack.decode(frame)
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            plain = mutate(plain, self._random)
        try:
            return [msgspec.msgpack.encode(plain)]
        except (OverflowError, UnicodeEncodeError, msgspec.MsgspecError):  # nothing that msgpack could carry
            return [flip_bits(frame, self._random)]

    def _bits(self, frame: bytes) -> list[bytes]:
        return [flip_bits(frame, self._random)]

    def _truncated(self, frame: bytes) -> list[bytes]:
        return [frame[: self._random.randrange(len(frame))]]

    def _extended(self, frame: bytes) -> list[bytes]:
        return [frame + self._random.randbytes(self._random.randint(1, 50))]

    def _bomb(self, frame: bytes) -> list[bytes]:
        at = self._random.randrange(len(frame))
        return [frame[:at] + self._random.choice(BOMBS) + frame[at:]]

    def _another_type(self, frame: bytes) -> list[bytes]:
        plain = msgspec.msgpack.decode(frame)
        plain["body"]["type"] = self._random.choice(TAGS)
        return [msgspec.msgpack.encode(plain)]

    def _huge_list(self, frame: bytes) -> list[bytes]:
        """At the bounds of the wire, and beyond."""
        plain = msgspec.msgpack.decode(frame)
        extra, body = self._random.choice((0, 0, 1)), plain["body"]
        first = self._random.getrandbits(100)
        if "blocks" in body:
            body["blocks"] = [[1] * (MAX_BLOCKS + extra)]
        else:
            body |= {"type": "beat", "open": [[f"{first + i:032x}", 0] for i in range(MAX_OPEN + extra)]}
        return [msgspec.msgpack.encode(plain)]

    def _twice(self, frame: bytes) -> list[bytes]:
        return [frame, frame]

    def _held_for_later(self, frame: bytes) -> list[bytes]:
        """Frames overtake each other: some are sent in a burst, in another order."""
        self._held_back.append(frame)
        if len(self._held_back) < self._random.randint(2, 20):
            return []
        late, self._held_back = self._held_back, []
        self._random.shuffle(late)
        return late

    def _replayed(self, frame: bytes) -> list[bytes]:
        return [self._random.choice(self._history) if self._history else frame]

    def _incarnation(self, frame: bytes) -> list[bytes]:
        plain = msgspec.msgpack.decode(frame)
        plain[self._random.choice(("sender", "receiver"))] = self._random.choice(self.incarnations)
        return [msgspec.msgpack.encode(plain)]

    def _noise(self, frame: bytes) -> list[bytes]:
        return [self._random.randbytes(self._random.randrange(2 * len(frame)))]
