"""What a request says of itself before it is let in: who asks, how urgent it is, how long the client waits. Pure."""

import math
import secrets
from hashlib import blake2b
from typing import Final

from baton.proxy.errors import BadRequestError
from baton.proxy.http.headers import RawHeaders, find
from baton.proxy.request.fields import Fields, is_set

PRIORITY: Final = "priority"  # vLLM's field; lower numbers go first there too
_KEY: Final = secrets.token_bytes(16)  # tenants' names mean something within this process only
_MOST: Final = 1 << 31


def tenant_of(headers: RawHeaders, header: str, name: str = "") -> str:
    """Return a name for who asks: that header's value, else the name of the API key, else what stands where it would be.

    "" if there is none of these. But for a key's name it is a keyed hash: short, and the key cannot be found from it.
    """
    said = header and find(headers, header.encode())
    if not said and name:
        return name
    said = said or find(headers, b"authorization")
    return blake2b(said, digest_size=8, key=_KEY).hexdigest() if said else ""


def priority_of(headers: RawHeaders, fields: Fields, header: str) -> int:
    """Return the priority: that header's value, else the body's; 0 if there is none, or if `header` is empty.

    Raises:
        BadRequestError: it is no integer.
    """
    if not header:
        return 0
    said = find(headers, header.encode())
    text = said.decode("latin-1") if said is not None else None
    if text is None and is_set(fields, PRIORITY):
        text = bytes(fields[PRIORITY]).decode()
    try:
        value = int("0" if text is None else text)
    except ValueError:
        raise BadRequestError(f"'{PRIORITY}' must be an integer", param=PRIORITY) from None
    return max(-_MOST, min(value, _MOST))


def timeout_s_of(headers: RawHeaders, header: str, longest_s: float) -> float:
    """Return how long a request may take: what it says, at most `longest_s`. Raises `BadRequestError`: that is none."""
    said = find(headers, header.encode()) if header else None
    if said is None:
        return longest_s
    try:
        asked_s = float(said)
    except ValueError:
        asked_s = math.nan
    if not asked_s > 0:
        raise BadRequestError(f"'{header}' must be a number of seconds above 0", param=header)
    return min(asked_s, longest_s)
