"""Why a request's key does not let it in, and what the answer says; the codes are OpenAI's."""

from enum import StrEnum
from http import HTTPStatus

from baton.proxy.errors import ProxyError


class Denial(StrEnum):
    """Why; the values are labels of `baton_access_refusals_total`."""

    MISSING = "missing"  # no key was shown
    UNKNOWN = "unknown"  # it is not in the file
    EXPIRED = "expired"
    AT_ONCE = "at_once"  # as many of the key's requests are here as may be
    PER_MINUTE = "per_minute"
    MODEL = "model"  # it is not among the key's


class AccessError(ProxyError):
    """A request is refused before anything of its body is looked at."""

    def __init__(self, message: str, denial: Denial, name: str = "") -> None:
        """`name` is the key's, where it is known."""
        super().__init__(message)
        self.denial = denial
        self.name = name


class InvalidKeyError(AccessError):
    """There is no key, or it opens nothing."""

    status = HTTPStatus.UNAUTHORIZED
    kind = "invalid_request_error"
    code = "invalid_api_key"
    headers = ((b"www-authenticate", b"Bearer"),)


class KeyLimitError(AccessError):
    """The key asks for more than it may."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    kind = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, denial: Denial, name: str, *, retry_after_s: int) -> None:
        super().__init__(message, denial, name)
        self.headers: tuple[tuple[bytes, bytes], ...] = ((b"retry-after", b"%d" % retry_after_s),)


class ModelNotAllowedError(ProxyError):
    """The key may not use this model; to its owner that is as if there were none."""

    status = HTTPStatus.NOT_FOUND
    kind = "invalid_request_error"
    code = "model_not_found"
