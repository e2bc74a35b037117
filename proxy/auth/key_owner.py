"""The owner of an API key, as what is behind the guard sees it: a name, and which models."""

from baton.proxy.auth.account import Account
from baton.proxy.auth.errors import Denial, ModelNotAllowedError
from baton.proxy.auth.metrics import AccessMetrics


class KeyOwner:
    """The owner of a key."""

    __slots__ = ("_account", "_counted")

    def __init__(self, account: Account, counted: AccessMetrics) -> None:
        self._account = account
        self._counted = counted

    @property
    def name(self) -> str:
        return self._account.name

    def may_use(self, model: str) -> bool:
        return self._account.may_use(model)

    def check_model(self, model: str) -> None:
        """Raise `ModelNotAllowedError` unless the key may use a model."""
        try:
            self._account.check_model(model)
        except ModelNotAllowedError:
            self._counted.refused(self.name, Denial.MODEL)
            raise
