"""What the main path knows of tracing. These do nothing; `sampled.py` has those of a request that is traced."""


class Leg:
    """One request to one node, which is not traced."""

    __slots__ = ()
    line = b""  # header to send

    def event(self, name: str) -> None:
        """Note that something happened."""

    def end(self, problem: str = "") -> None:
        """Note its end; only the first one counts."""


class Trace:
    """One client's request, which is not traced."""

    __slots__ = ()
    line: bytes | None = None  # replaces the client's own trace headers; None: they pass as they came
    trace_id = ""

    def waited(self, wait_s: float) -> None:
        """Note that it was let in just now."""

    def leg(self, role: str, url: str) -> Leg:
        del role, url
        return _NO_LEG

    def event(self, name: str, **fields: str) -> None:
        """Note that something happened."""

    def end(self, status: int, *, failed: bool, **fields: str | int) -> None:
        """Note its end. `status` is 0 if the client got no head."""


class UnsampledTrace(Trace):
    """Propagates an unsampled traceparent, so that vLLM starts no trace of its own."""

    __slots__ = ("line",)

    def __init__(self, line: bytes) -> None:
        self.line = line


_NO_LEG = Leg()
UNTRACED = Trace()
