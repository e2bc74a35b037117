"""Every exception that this package raises on purpose; foreign ones are translated where they enter."""


class ConnectorError(Exception):
    """Root of the tree: something about a hand-off is wrong, and the message says what."""


class ConnectorConfigError(ConnectorError):
    """A setting, or a setting of vLLM's, that this connector cannot work with."""


class LayoutError(ConnectorError):
    """The KV cache is laid out in a way that cannot be pushed, or two nodes lay it out differently."""


class BlockOutOfRange(LayoutError):  # noqa: N818  # says what happened, as `IndexError` would not
    """A block id lies outside its region."""


class EngineError(ConnectorError):
    """The transfer engine refused to start, to register memory, or to be used as asked."""


class ProtocolError(ConnectorError):
    """A peer's message is malformed."""

    kind = "malformed"  # under which it is counted


class VersionError(ProtocolError):
    """A peer speaks another version of the protocol."""

    kind = "version"
