"""Who asks, in a request's ASGI scope: set by API-key authentication, read by everything behind it."""

from typing import Final, Protocol

from starlette.types import Scope

CALLER: Final = "baton.caller"  # key of the scope


class Caller(Protocol):
    """The owner of an API key."""

    @property
    def name(self) -> str: ...

    def may_use(self, model: str) -> bool: ...

    def check_model(self, model: str) -> None:
        """Raise a `ProxyError` unless the key may use a model."""


def caller_of(scope: Scope) -> Caller | None:
    """Return who asks; None where no keys are configured."""
    caller: Caller | None = scope.get(CALLER)
    return caller


def check_model(scope: Scope, model: str) -> None:
    """Raise a `ProxyError` if there is a key and it may not use a model."""
    if (caller := caller_of(scope)) is not None:
        caller.check_model(model)
