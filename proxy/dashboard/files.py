"""The page's files, as they lie in the package: read at the first request, kept then."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "page"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file."""

    content: bytes
    kind: str
    tag: str  # changes with the content


@cache
def files() -> dict[str, File]:
    """Return all of them by name: nothing else can be asked for."""
    return {
        path.name: File(
            content=(content := path.read_bytes()),
            kind=_KINDS[path.suffix],
            tag=f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"',
        )
        for path in sorted(FOLDER.iterdir())
        if path.suffix in _KINDS
    }
