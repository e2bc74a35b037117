"""A client's connection that the test moves."""

from typing import Any


class Transport:
    """As much of a transport as uvicorn uses."""

    def __init__(self, unread_bytes: int = 0) -> None:
        self.unread_bytes = unread_bytes
        self.closing = self.aborted = False
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data
        self.unread_bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def get_extra_info(self, _name: str) -> Any:
        """Nothing is known."""

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def resume_reading(self) -> None:
        """Whatever."""

    pause_reading = resume_reading

    def set_protocol(self, _protocol: object) -> None:
        """Whatever."""
