"""One key at work: how much of what it may ask for it has asked for. Pure but for its clocks.

Requests per minute are a bucket that holds a minute's worth and fills evenly: so many at once after a quiet minute, one
every 60/n seconds after that. It is kept as one instant: when all that was asked for will have been paid with time.
"""

import math
import time
from collections.abc import Callable
from typing import Final

from baton.proxy.auth.counts import Counts
from baton.proxy.auth.errors import Denial, InvalidKeyError, KeyLimitError, ModelNotAllowedError
from baton.proxy.auth.key_file import Key

MINUTE_S: Final = 60.0
_RETRY_AT_ONCE_S: Final = 1  # it is not known when one of them will have ended


class Account:
    """What there is of a key, for as long as its name is in the file."""

    __slots__ = ("_clock", "_counts", "_wall_clock", "key")

    def __init__(
        self,
        key: Key,  # may be replaced by one of the same name: what was counted stays
        counts: Counts,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.key = key
        self._counts = counts
        self._clock = clock
        self._wall_clock = wall_clock

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def is_used(self) -> bool:
        """Whether requests of this worker have it."""
        return self._counts.own > 0

    def check_valid(self) -> None:
        """Raise `InvalidKeyError` if it has expired."""
        expires_at_s = self.key.expires_at_s
        if expires_at_s is not None and self._wall_clock() >= expires_at_s:
            raise InvalidKeyError("the API key has expired", Denial.EXPIRED, self.name)

    def enter(self) -> None:
        """Count a request that begins; `leave` must follow. Raises `KeyLimitError`: it would be one too many."""
        most, rate = self.key.requests_at_once, self.key.requests_per_minute
        if most is not None and self._counts.inside >= most:
            message = f"{most} requests of this API key are being served, and no more may be at once"
            raise KeyLimitError(message, Denial.AT_ONCE, self.name, retry_after_s=_RETRY_AT_ONCE_S)
        if rate is not None:
            now_s = self._clock()
            until_s = max(now_s, self._counts.until_s) + MINUTE_S / rate
            over_s = until_s - now_s - MINUTE_S
            if over_s > 1e-6:  # what floats lose
                message = f"this API key may make {rate} requests per minute"
                raise KeyLimitError(message, Denial.PER_MINUTE, self.name, retry_after_s=max(1, math.ceil(over_s)))
            self._counts.until_s = until_s
        self._counts.add(1)

    def leave(self) -> None:
        self._counts.add(-1)

    def may_use(self, model: str) -> bool:
        return self.key.models is None or model in self.key.models

    def check_model(self, model: str) -> None:
        """Raise `ModelNotAllowedError` unless the key may use a model; "" is none, which a limited key must name."""
        if self.may_use(model):
            return
        if model:
            message = f"the model '{model}' does not exist, or this API key may not use it"
        else:
            message = "this API key may use certain models only: the request must name one in 'model'"
        raise ModelNotAllowedError(message, param="model")
