"""The token of the admin API, read once from a file of its own."""

import hmac
from pathlib import Path
from typing import Final

MIN_CHARS: Final = 16


class AdminTokenError(ValueError):
    """There is no usable token; the message says why."""


class AdminToken:
    """Knows the token and never shows it."""

    def __init__(self, text: str) -> None:
        """Raises `AdminTokenError`: it is too short to be one."""
        if len(text) < MIN_CHARS:
            raise AdminTokenError(f"the admin token needs at least {MIN_CHARS} characters")
        self._header = f"Bearer {text}".encode()

    def __repr__(self) -> str:
        return "AdminToken(…)"

    def opens(self, authorization: str) -> bool:
        return hmac.compare_digest(authorization.encode(), self._header)


def read_admin_token(path: Path) -> AdminToken:
    """Read the token, without the white space around it. Raises `AdminTokenError`: there is no usable one."""
    try:
        return AdminToken(path.read_text(encoding="utf-8").strip())
    except OSError as exc:
        raise AdminTokenError(f"cannot read the admin token from {path}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise AdminTokenError(f"cannot read the admin token from {path}: it is no text") from exc
