"""Why a look orders nothing."""


class RolesError(Exception):
    """The message is one sentence, without what differs from look to look."""


class SilentError(RolesError):
    """What is known of the nodes is not whole, or not fresh."""


class RefusedError(RolesError):
    """A proxy has refused an order."""


class TokenError(RolesError):
    """A proxy does not take the admin token: no later look can help."""
