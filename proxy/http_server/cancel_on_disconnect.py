"""Noticing that the client left, whatever the request is waiting for at that moment."""

from types import TracebackType

from baton.proxy.errors import ClientGoneError
from baton.proxy.http_server.cancel_scope import CancelScope
from baton.proxy.http_server.client_protocol import Writer


class CancelOnDisconnect:
    """Runs a block for as long as the client stays, and raises `ClientGoneError`; the request's body must have been read."""

    __slots__ = ("_scope", "_writer")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._scope = CancelScope()

    def __enter__(self) -> None:
        if not self._writer.tell_when_gone(self._scope.cancel):
            raise ClientGoneError

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._writer.tell_when_gone(None)
        if self._scope.end(kind):
            raise ClientGoneError from exc
