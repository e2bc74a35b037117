"""A subject that sleeps while it is not asked, since its engines would take a core each even then."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from benchmarks.overlap.figures import Sample
from benchmarks.overlap.streaming import Answer
from benchmarks.overlap.subjects import Nixl


class Resting:
    """Stops processes (SIGSTOP) whenever nothing is asked."""

    def __init__(self, subject: Nixl, engines: Sequence[int]) -> None:
        """`engines` are process ids; see `rest`."""
        self._subject = subject
        self._engines = engines
        self._asking = 0

    def rest(self) -> None:
        """Stop them until the first request."""
        self._signal(signal.SIGSTOP)

    async def ask(self, prompt: Sequence[int], max_tokens: int, times: list[float] | None = None) -> Answer:
        with self._awake():
            return await self._subject.ask(prompt, max_tokens, times)

    async def measure(self, prompt: Sequence[int]) -> Sample:
        """See `Subject.measure`; that it settles before it begins is time to wake up, too."""
        with self._awake():
            return await self._subject.measure(prompt)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        self._asking += 1
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._asking -= 1
            if not self._asking:
                self.rest()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._engines:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
