"""What runs attempts in front of parts that do nothing, and a trace that keeps what it is told."""

from contextlib import nullcontext
from unittest.mock import Mock

from baton.contracts.configuration.schema import BatonConfig
from baton.proxy.handler.attempt import AttemptRunner
from baton.proxy.tracing.traces import Leg, Trace
from tests.support.fake_vllm import SECRET


def runner() -> AttemptRunner:
    parts = {name: Mock() for name in ("upstream", "members", "metrics", "cancels", "watch")}
    parts["watch"].watching.return_value = nullcontext()
    return AttemptRunner(BatonConfig(), SECRET, **parts)


class SeenTrace(Trace):
    """Keeps how each leg ended first, by its node's role, and what happened on it."""

    def __init__(self) -> None:
        self.ends: dict[str, str] = {}
        self.events: list[tuple[str, str]] = []

    def leg(self, role: str, url: str) -> Leg:
        seen = self

        class SeenLeg(Leg):
            line = f"traceparent: {url}\r\n".encode()

            def event(self, name: str) -> None:
                seen.events.append((role, name))

            def end(self, problem: str = "") -> None:
                seen.ends.setdefault(role, str(problem))

        return SeenLeg()
