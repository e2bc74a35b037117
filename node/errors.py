"""The node's exceptions."""


class NodeError(Exception):
    """The node cannot do what it was asked; the message is one sentence for the person who asked."""


class StartRefusedError(NodeError):
    """The node does not start; nothing heavy has been done yet."""


class NoAnswerError(NodeError):
    """The connector in an engine's process gave no answer that can be used."""


class ConnectorSilentError(NoAnswerError):
    """The connector did not answer in time; its process is there, and may be stopped, swapping or in a long step."""


class ConnectorFailedError(NoAnswerError):
    """The connector's process is gone or has not started, or it answered with an error."""
