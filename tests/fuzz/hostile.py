"""A decode rank and a prefill rank that hold the cluster secret and know every name, and what they would say.

Their sentences are valid; `frames.Mutator` spoils them. Names are drawn from few, so that sentences meet: transfers of
their own, those of others, and some that do not exist.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from baton.kv_connector.protocol.messages import (
    Beat,
    Body,
    Commit,
    Fail,
    Hello,
    Introduce,
    Message,
    OpenEpoch,
    Rank,
    Refuse,
    Reserve,
    Revoke,
    Started,
    encode,
)
from tests.support.ranks import BLOCK_TOKENS, BLOCKS, FINGERPRINT, LAYERS, Memory

OWN_BLOCKS = range(8, BLOCKS)  # of either rank; the healthy transfers use others
NAMES = 64  # transfers of its own that a hostile rank speaks of at a time
LIFE = 150  # frames for which it keeps an incarnation
INHERITED = 4  # names that it has from its predecessor, whose transfers they are


class Speaker:
    """One hostile process after another, at one place."""

    def __init__(self, random_: random.Random, peer: int, memory: Memory) -> None:
        self.peer = peer  # incarnation of the victim
        self.others: Sequence[str] = ()  # transfers that are none of its business
        self.names: list[str] = []
        self.incarnation = 0
        self._random = random_
        self._memory = memory
        self._seq = 0
        self._frames = 0
        self._sentences: list[tuple[Callable[[], Body], int]] = []

    def next_frame(self) -> tuple[bytes, bool]:
        """Return a valid frame, and whether a new process speaks from it on."""
        is_new = self._frames % LIFE == 0
        if is_new:
            self.incarnation = self._random.getrandbits(62) + 1
            self.names = self.names[-INHERITED:]
        self._frames += 1
        sentences, weights = zip(*self._sentences, strict=True)
        body = self.hello() if is_new else self._random.choices(sentences, weights)[0]()
        self._seq += 1
        receiver = 0 if is_new else self.peer
        return encode(Message(self.incarnation, receiver, self._seq, body)), is_new

    def name(self) -> str:
        """Draw the id of a new transfer of its own."""
        self.names = [*self.names[-NAMES + 1 :], f"{self._random.getrandbits(128):032x}"]
        return self.names[-1]

    def hello(self) -> Hello:
        """An introduction that is accepted."""
        return Hello(node="hostile", rank=Rank(), fingerprint=FINGERPRINT, regions=list(self._memory.caches.regions))

    def some_name(self) -> str:
        """An id that means something to the victim, mostly."""
        kind = self._random.random()
        if kind < 0.85 and self.names:
            return self._random.choice(self.names)
        if kind < 0.9 and self.others:
            return self._random.choice(self.others)
        return f"{self._random.getrandbits(128):032x}"

    def open(self) -> list[OpenEpoch]:
        """What it counts as open: mostly everything, so that not all of it ends with each beat."""
        some = [self.some_name() for _ in range(self._random.choice((0, 2, 9)))]
        listed = some if self._random.random() < 0.2 else [*self.names, *some]
        return [OpenEpoch(name, self._random.choice((0, 0, 1))) for name in listed]


class HostileDecode(Speaker):
    """Speaks to a prefill rank."""

    def __init__(self, random_: random.Random, peer: int, memory: Memory) -> None:
        super().__init__(random_, peer, memory)
        self.engines: Sequence[str] = ()  # its own, and others'
        self._sentences = [
            (self.hello, 5),
            (lambda: Beat(open=self.open()), 25),
            (self._reserve, 40),
            (lambda: Revoke(transfer_id=self.some_name(), epoch=self._random.choice((0, 1, 1, 2))), 10),
            (lambda: Revoke(transfer_id=self.some_name(), epoch=1, mismatch="not what I wanted"), 5),
            (lambda: Started(transfer_id=self.some_name(), tokens=16), 1),
            (lambda: Fail(transfer_id=self.some_name(), epoch=1, dirty=True, reason="no"), 1),
            (Introduce, 1),
        ]

    def _reserve(self) -> Reserve:
        name = self.some_name()
        blocks = self._random.randint(1, 3)
        first = self._random.choice((0, 0, 0, BLOCK_TOKENS))
        return Reserve(
            transfer_id=name,
            epoch=self._random.choice((1, 1, 1, 2)),
            engine=self._random.choice(self.engines),
            tokens=3 * BLOCK_TOKENS,
            from_token=first,
            blocks=[self._random.sample(OWN_BLOCKS, blocks if first else 3)],
            prompt_hash=f"prompt {name}".encode(),
        )


class HostilePrefill(Speaker):
    """Speaks to a decode rank."""

    def __init__(self, random_: random.Random, peer: int, memory: Memory) -> None:
        super().__init__(random_, peer, memory)
        self._sentences = [
            (self.hello, 10),
            (lambda: Beat(open=self.open()), 20),
            (lambda: Started(transfer_id=self.some_name(), tokens=3 * BLOCK_TOKENS), 15),
            (self._commit, 25),
            (self._fail, 20),
            (Introduce, 5),
            (lambda: Refuse(reason="I do not like you"), 1),
            (lambda: Revoke(transfer_id=self.some_name(), epoch=1), 2),
        ]

    def _commit(self) -> Commit:
        name = self.some_name()
        timings: dict[str, Any] = {"commit": self._random.random(), "reserved": -self._random.random()}
        return Commit(
            transfer_id=name,
            epoch=self._random.choice((0, 1, 1, 1)),
            tokens=3 * BLOCK_TOKENS,
            prompt_hash=f"prompt {name}".encode(),
            shards=self._random.choice((1, 1, 1, 2)),
            timings_s=timings,
            cached_tokens=self._random.choice((0, BLOCK_TOKENS, 1 << 31)),
            digests=self._random.choice((b"", b"", b"another!" * LAYERS, b"short")),
        )

    def _fail(self) -> Fail:
        return Fail(
            transfer_id=self.some_name(),
            epoch=self._random.choice((0, 1, 1, 1)),
            dirty=self._random.random() < 0.1,
            reason="because",
        )
