"""What was refused, by kind: counted for the node API, and logged no more often than a disk can bear.

A peer that sends rubbish decides how much of it there is, so each kind gets one line in the log per `LOG_EVERY_S`, with
the number of those that it stands for. Nothing here grows with what is sent: the kinds are the names below.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum

LOG_EVERY_S = 10.0
MAX_DETAIL_CHARS = 200


class Refused(StrEnum):
    """Kinds, as `/baton/transfers` names them."""

    # connections
    HANDSHAKE = "handshake"  # closed before encryption stood: raw bytes, no secret or another one, half-open
    MULTIPART = "multipart"  # a message of several frames
    OVERSIZED = "oversized"
    # frames
    MALFORMED = "malformed"
    VERSION = "version"
    # envelopes
    STRANGER = "stranger"  # the sender has not introduced itself, or its peer has forgotten it
    SECOND_SENDER = "second_sender"  # one connection speaks for two processes
    FOREIGN_RECEIVER = "foreign_receiver"  # meant for another process
    OVERTAKEN = "overtaken"  # replayed, repeated, or slower than a newer one
    NOT_OPEN = "not_open"  # of a peer whose introduction was refused
    # what they ask for
    INTRODUCTION = "introduction"  # the two must not exchange KV
    UNEXPECTED = "unexpected"  # a message that this side never gets, or a complaint about nothing
    TOO_MANY_PEERS = "too_many_peers"
    TOO_MUCH = "too_much"  # more transfers or blocks than one peer may have
    NOT_THEIRS = "not_theirs"  # another peer has this transfer
    BLOCKS = "blocks"  # ids that the peer's pool does not have
    ENGINE = "engine"  # another peer writes through this engine
    REUSED_ID = "reused_id"  # a second request with the transfer id of the first: n > 1, or a replay
    # requests
    RELAY = "relay"  # the answer was to begin here, and this engine cannot end it after the first token
    START = "start"  # a request cannot begin with the tokens that its client has: it ends with an error
    MALFORMED_PARAMS = "malformed_params"
    PARAMS_VERSION = "params_version"
    BAD_SIGNATURE = "bad_signature"
    BAD_TOKEN = "bad_token"  # noqa: S105  # a name
    CROWDED = "crowded"  # an HTTP connection without a request, when there were too many


class Refusals:
    """Counts and logs. Every method may be called from any thread."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}  # kind → when, and the count that was told

    def count(self, kind: str, detail: object = "", number: int = 1) -> None:
        """Note that `number` things of a kind were refused; `detail` is for the log, and is cut short."""
        now = self._clock()
        with self._lock:
            self._counts[kind] += number
            total = self._counts[kind]
            since, told = self._logged.get(kind, (-LOG_EVERY_S, 0))
            if now - since < LOG_EVERY_S:
                return
            self._logged[kind] = now, total
        self._logger.warning("refused %d × %s, the last: %s", total - told, kind, _one_line(detail))

    def snapshot(self) -> dict[str, int]:
        """How many of each kind; kinds that never came are left out."""
        with self._lock:
            return {str(kind): number for kind, number in sorted(self._counts.items())}


def added_up(*counts: Mapping[str, int]) -> dict[str, int]:
    """How many of each kind several parts of a node have refused."""
    return dict(sum(map(Counter, counts), Counter[str]()))


def _one_line(detail: object) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(detail)[:MAX_DETAIL_CHARS])
