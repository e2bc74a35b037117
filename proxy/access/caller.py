"""Who asks, as far as what is behind the guard wants to know: a name, and which models."""

from typing import Final

from starlette.types import Scope

from baton.proxy.access.account import Account
from baton.proxy.access.errors import Denial, ModelNotAllowedError
from baton.proxy.access.metrics import AccessMetrics

CALLER: Final = "baton.caller"  # in a request's scope


class Caller:
    """The owner of a key."""

    __slots__ = ("_account", "_counted")

    def __init__(self, account: Account, counted: AccessMetrics) -> None:
        self._account = account
        self._counted = counted

    @property
    def name(self) -> str:
        """The key's name."""
        return self._account.name

    def may_use(self, model: str) -> bool:
        """Whether a model is among the key's."""
        return self._account.may_use(model)

    def check_model(self, model: str) -> None:
        """Raise `ModelNotAllowedError` unless the key may use a model."""
        try:
            self._account.check_model(model)
        except ModelNotAllowedError:
            self._counted.refused(self.name, Denial.MODEL)
            raise


def caller_of(scope: Scope) -> Caller | None:
    """Return who asks; None where no keys are configured."""
    caller: Caller | None = scope.get(CALLER)
    return caller


def check_model(scope: Scope, model: str) -> None:
    """Raise `ModelNotAllowedError` if there is a key and it may not use a model."""
    caller: Caller | None = scope.get(CALLER)
    if caller is not None:
        caller.check_model(model)
