"""The node's exceptions."""


class NodeError(Exception):
    """The node cannot do what it was asked; the message is one sentence for the person who asked."""


class StartRefusedError(NodeError):
    """The node does not start; nothing heavy has been done yet."""


class ConnectorSilentError(NodeError):
    """The connector in the engine's process did not answer in time."""
