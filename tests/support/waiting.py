"""Waiting, with a deadline, for what another thread or process comes to."""

import time
from collections.abc import Callable


def eventually(
    condition: Callable[[], object],
    timeout_s: float = 20.0,
    *,
    every_s: float = 0.005,
    found: Callable[[], object] = lambda: "it did not happen in time",
) -> None:
    """Wait until `condition` holds; fail with what is `found` if it does not."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, found()
        time.sleep(every_s)
