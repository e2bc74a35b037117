"""What can go wrong between a sampled token and the host."""


class TokenTransferError(Exception):
    """A step's tokens did not come."""


class DeviceLostError(TokenTransferError):
    """The device failed; no later step's tokens come either."""
