"""What stops a command, by what the user can do about it."""


class LoadtestError(Exception):
    """Base of the errors below; the message is one sentence for the user."""


class UsageError(LoadtestError):
    """An argument, or a file named by one, is wrong; exit status 2."""


class RunError(LoadtestError):
    """The command was right and could not be carried out; exit status 1."""
