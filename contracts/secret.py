"""The cluster secret and everything derived from it.

Every process of one deployment holds the same secret. Nothing but keys derived from it is ever used or sent:
a signature over `kv_transfer_params`, the bearer token of the node API, the seed of the control channel's keys.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

MIN_SECRET_CHARS = 16


class SecretError(ValueError):
    """The cluster secret is missing or too short; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """The shared secret of one deployment; its `repr` never shows it."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) < MIN_SECRET_CHARS:
            raise SecretError(f"the cluster secret needs at least {MIN_SECRET_CHARS} characters")

    def __repr__(self) -> str:
        return "ClusterSecret(…)"

    def derive(self, purpose: str) -> bytes:
        """Return the 32-byte key for `purpose`; different purposes give unrelated keys."""
        return hmac.new(self.value, b"baton/1/" + purpose.encode(), hashlib.sha256).digest()

    def node_token(self) -> str:
        """The bearer token that the `/baton/*` routes of a node ask for."""
        return self.derive("node-api").hex()


def generate_secret() -> str:
    """Return a fresh secret, 43 URL-safe characters (256 bits)."""
    return secrets.token_urlsafe(32)


def read_secret(path: Path) -> ClusterSecret:
    """Read the secret from a file, ignoring white space around it.

    Raises:
        SecretError: the file is missing, unreadable or too short.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise SecretError(f"cannot read the cluster secret from {path}: {exc.strerror}") from exc
    return ClusterSecret(text.encode())
