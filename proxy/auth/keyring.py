"""All keys: from what a client shows to the account that it opens. Pure.

A key is hashed and its digest is looked up: how long that takes says nothing of the keys that there are.
"""

from collections.abc import Callable, Sequence
from typing import Final

from baton.proxy.auth.account import Account
from baton.proxy.auth.counts import Counts
from baton.proxy.auth.errors import Denial, InvalidKeyError
from baton.proxy.auth.key_file import Key, digest_of
from baton.proxy.http.headers import RawHeaderList, RawHeaders

CREDENTIALS: Final = frozenset((b"authorization", b"x-api-key"))
_BEARER: Final = b"bearer "
_MISSING: Final = "no API key: send 'Authorization: Bearer …', or 'x-api-key: …'"
_UNKNOWN: Final = "incorrect API key"


class Keyring:
    """The API keys that count now."""

    def __init__(self, counts: Callable[[str], Counts]) -> None:
        """`counts` makes those of a name that was not there."""
        self._counts = counts
        self._by_name: dict[str, Account] = {}
        self._leaving: dict[str, Account] = {}  # of no key any more, but requests of theirs go on
        self._by_digest: dict[bytes, Account] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def adopt(self, keys: Sequence[Key]) -> dict[str, list[str]]:
        """Let these be the keys from now on; those that stay keep what was counted. Return what changed, by names."""
        before = {name: account.key for name, account in self._by_name.items()}
        known = {name: account for name, account in self._leaving.items() if account.is_used} | self._by_name
        by_name: dict[str, Account] = {}
        for key in keys:
            account = known.get(key.name) or Account(key, self._counts(key.name))
            account.key = key
            by_name[key.name] = account
        self._leaving = {name: each for name, each in known.items() if name not in by_name and each.is_used}
        self._by_name = by_name
        self._by_digest = {digest: by_name[key.name] for key in keys for digest in key.digests}
        return {
            "added": [name for name in by_name if name not in before],
            "removed": [name for name in before if name not in by_name],
            "changed": [name for name, key in before.items() if name in by_name and by_name[name].key != key],
        }

    def account_of(self, headers: RawHeaders) -> Account:
        """Return the account that a request's key opens. Raises `InvalidKeyError`: it is none, unknown or expired."""
        shown = _shown(headers)
        if shown is None:
            raise InvalidKeyError(_MISSING, Denial.MISSING)
        account = self._by_digest.get(digest_of(shown))
        if account is None:
            raise InvalidKeyError(_UNKNOWN, Denial.UNKNOWN)
        account.check_valid()
        return account


def without_credentials(headers: RawHeaders) -> RawHeaderList:
    """Return what nodes may see of a request's headers: the key was for us."""
    return [pair for pair in headers if pair[0] not in CREDENTIALS]


def _shown(headers: RawHeaders) -> bytes | None:
    """Return the key that a request shows: `Authorization: Bearer`, else Anthropic's `x-api-key`."""
    other: bytes | None = None
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == _BEARER:
            return value[7:].strip()
        if name == b"x-api-key" and other is None:
            other = value
    return other
