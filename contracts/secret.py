"""The cluster secret and everything derived from it.

Every process of one deployment holds the same secret. Nothing but keys derived from it is ever used or sent:
a signature over `kv_transfer_params`, the bearer token of the node API, the seed of the control channel's keys.

While a secret is being replaced there are two. One rule covers all uses: what a process makes, it makes with the
*first*; what it is given, it accepts if *either* made it. `docs/security.md` has the procedure.
"""

import hmac
import logging
import secrets
import time
from functools import lru_cache
from pathlib import Path

logger = logging.getLogger(__name__)

MIN_SECRET_CHARS = 16
MAX_SECRETS = 2
LOOK_AGAIN_S = 1.0  # how often a process looks whether the file has changed


class SecretError(ValueError):
    """The cluster secret is missing or cannot be used; the message says which and what to do."""


class ClusterSecret:
    """The secret of one deployment, or both of them while one replaces the other; its `repr` never shows them."""

    def __init__(self, *values: bytes) -> None:
        """Raises `SecretError` unless there are one or two different secrets that are long enough."""
        self._values = _checked(values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSecret) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]  # a file's secret may change

    @property
    def values(self) -> tuple[bytes, ...]:
        """The secrets: the first is used, each is accepted."""
        return self._values

    def derive(self, purpose: str) -> bytes:
        """Return the 32-byte key for `purpose`; different purposes give unrelated keys."""
        return _derive(self.values[0], purpose)

    def accepted(self, purpose: str) -> tuple[bytes, ...]:
        """Return the keys for `purpose` that others may have used, ours first."""
        return tuple(_derive(value, purpose) for value in self.values)

    def node_token(self) -> str:
        """The bearer token to show to the `/baton/*` routes of a node."""
        return self.derive("node-api").hex()

    def accepts_node_token(self, token: bytes) -> bool:
        """Whether a bearer token opens the `/baton/*` routes."""
        return any(hmac.compare_digest(key.hex().encode(), token) for key in self.accepted("node-api"))


class SecretFile(ClusterSecret):
    """The secrets that a file holds now: it is read again when it has changed.

    A file that has become unusable changes nothing: the secrets read last stay, and the log says so once.
    """

    def __init__(self, path: Path) -> None:
        """Raises `SecretError`: the file is missing, unreadable or holds no usable secret."""
        self._path = path
        self._stamp = _stamp(path)
        self._look_at = time.monotonic() + LOOK_AGAIN_S
        self._problem = ""  # with the file, as it is now
        super().__init__(*_read(path))

    @property
    def values(self) -> tuple[bytes, ...]:
        """The secrets, at most `LOOK_AGAIN_S` behind the file."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_AGAIN_S
            self._look()
        return self._values

    def _look(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            values = _checked(_read(self._path))
        except SecretError as exc:
            if str(exc) != self._problem:
                self._problem = str(exc)
                logger.warning("the file of the cluster secret cannot be used, what was read last stays: %s", exc)
            return
        self._stamp, self._problem = stamp, ""
        if values != self._values:
            self._values = values
            logger.warning("the cluster secret has changed: %d accepted", len(values))  # to be seen in every log


def generate_secret() -> str:
    """Return a fresh secret, 43 URL-safe characters (256 bits)."""
    return secrets.token_urlsafe(32)


def read_secret(path: Path) -> ClusterSecret:
    """Read the secrets from a file, and follow it from then on; raises `SecretError` as `SecretFile` does.

    One secret a line, two at most; white space around them, empty lines and lines that begin with `#` are ignored.
    """
    return SecretFile(path)


@lru_cache(maxsize=64)
def _derive(value: bytes, purpose: str) -> bytes:
    return hmac.digest(value, b"baton/1/" + purpose.encode(), "sha256")


def _checked(values: tuple[bytes, ...]) -> tuple[bytes, ...]:
    if not values or min(map(len, values)) < MIN_SECRET_CHARS:
        raise SecretError(f"the cluster secret needs at least {MIN_SECRET_CHARS} characters")
    if len(values) > MAX_SECRETS:
        raise SecretError(f"{len(values)} cluster secrets are given, {MAX_SECRETS} may be: the one used and another")
    if len(set(values)) < len(values):
        raise SecretError("the two cluster secrets are the same")
    return values


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as exc:
        raise SecretError(f"cannot read the cluster secret from {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise SecretError(f"cannot read the cluster secret from {path}: it is no text") from exc
    words = (line.strip() for line in lines)
    return tuple(word.encode() for word in words if word and not word.startswith("#"))


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return what differs when a file has been written or replaced."""
    try:
        status = path.stat()
    except OSError as exc:
        raise SecretError(f"cannot read the cluster secret from {path}: {exc.strerror}") from exc
    return status.st_mtime_ns, status.st_size, status.st_ino
