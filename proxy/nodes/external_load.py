"""What others have in flight on one node: other proxies, other workers of this one, clients that ask it directly. Pure.

A node says with every probe how much it has; what this proxy had there at that time is taken off. The rest is smoothed:
it is a sample of what comes and goes within a probe's interval, and proxies that all follow the latest sample all go to
the same node, until the next.
"""

from typing import Final

from baton.contracts.node_info import NodeLoad

GAIN: Final = 0.3  # of a new sample; the first counts whole
# Requests: less than that is the rest of what was, and must not decide between idle nodes. One request counts at once:
# it adds `GAIN`.
LEAST: Final = 0.1


class ExternalLoad:
    """Smoothed load that other proxies put on this node; 0 until known."""

    __slots__ = ("_bytes", "_known", "_own_requests", "_requests", "prompt_bytes", "requests")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """It is not known any more, or there is another process behind the address."""
        self._known = False
        self._requests = self._own_requests = self._bytes = 0.0
        self.requests = self.prompt_bytes = 0.0

    def learn(self, total: NodeLoad | None, own: NodeLoad) -> None:
        """Take what a node said, and what this proxy had there at that time.

        The two are not of the same instant, so a difference is never less than nothing. A node counts whole bodies and
        the proxy the prompts in them: without requests of others there are no bytes of others.
        """
        if total is None:  # it does not say
            self.forget()
            return
        requests = max(0, total.requests - own.requests)
        prompt_bytes = max(0, total.prompt_bytes - own.prompt_bytes) if requests else 0
        gain = GAIN if self._known else 1.0
        self._known = True
        self._requests += gain * (requests - self._requests)
        self._own_requests += gain * (own.requests - self._own_requests)
        self._bytes += gain * (prompt_bytes - self._bytes)
        seen = self._requests >= LEAST
        self.requests, self.prompt_bytes = (self._requests, self._bytes) if seen else (0.0, 0.0)

    @property
    def factor(self) -> float:
        """All requests ÷ those through this proxy."""
        return 1 + self.requests / max(self._own_requests, LEAST)
