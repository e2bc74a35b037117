"""Probes of a container, judged as kubelet does: thresholds, and a startup probe before which the others wait."""

import http.client
import threading
import time
from dataclasses import dataclass, field
from typing import Final, Self

from tests.support.kubernetes.render import Object

KINDS: Final = ("startupProbe", "readinessProbe", "livenessProbe")
_PERIOD_S, _TIMEOUT_S, _FAILURES, _SUCCESSES = 10, 1, 3, 1  # Kubernetes' defaults
_LOOK_S: Final = 0.1


@dataclass(slots=True)
class Judgement:
    """What the answers to one probe amount to."""

    period_s: float
    timeout_s: float
    failures: int
    successes: int
    path: str
    port: int
    holds: bool
    _streak: int = field(default=0, init=False)

    @classmethod
    def of(cls, kind: str, container: Object) -> Self:
        """Read a probe of a manifest; a container is alive, and not ready, until it has been asked often enough."""
        probe = container[kind]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        return cls(
            period_s=probe.get("periodSeconds", _PERIOD_S),
            timeout_s=probe.get("timeoutSeconds", _TIMEOUT_S),
            failures=probe.get("failureThreshold", _FAILURES),
            successes=probe.get("successThreshold", _SUCCESSES),
            path=probe["httpGet"]["path"],
            port=ports[probe["httpGet"]["port"]],
            holds=kind == "livenessProbe",
        )

    def take(self, succeeded: bool) -> None:
        """Take an answer; enough in a row that speak against what holds turn it."""
        self._streak = self._streak + 1 if succeeded != self.holds else 0
        if self._streak >= (self.successes if succeeded else self.failures):
            self.holds, self._streak = succeeded, 0


class Prober:
    """Asks a container from outside while it runs; in a thread."""

    def __init__(self, container: Object, address: str) -> None:
        """Take a container of a manifest and where it is."""
        self._address = address
        self._startup, self._readiness, self._liveness = (Judgement.of(kind, container) for kind in KINDS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"probes of {address}", daemon=True)
        self.failed = ""  # what kubelet would restart the container for

    @property
    def ready(self) -> bool:
        """Whether the container belongs into its Services."""
        return self._readiness.holds

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; what held last still holds."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        refused = 0
        while not self._startup.holds and not self._stop.is_set():
            refused += not self._ask(self._startup)
            if refused >= self._startup.failures:
                self.failed = f"it has not started after {refused} probes"
                return
            if not self._startup.holds:
                self._stop.wait(self._startup.period_s)
        due_s = {id(each): time.monotonic() for each in (self._readiness, self._liveness)}
        while not self._stop.wait(_LOOK_S):
            for probe in (self._readiness, self._liveness):
                if time.monotonic() >= due_s[id(probe)]:
                    due_s[id(probe)] += probe.period_s
                    self._ask(probe)
            if not self._liveness.holds:
                self.failed = "its liveness probe fails"
                return

    def _ask(self, probe: Judgement) -> bool:
        connection = http.client.HTTPConnection(self._address, probe.port, timeout=probe.timeout_s)
        try:
            connection.request("GET", probe.path, headers={"Connection": "close"})
            succeeded = 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            succeeded = False
        finally:
            connection.close()
        probe.take(succeeded)
        return succeeded
