"""SIGTERM: take no new work, end what there is, then let vLLM stop.

A node that drains refuses new requests (`node/middleware.py`, 503) and goes on with requests under way, pushes of
finished prompts, cancels, probes, metrics and the node's own API. `baton admin drain` is kept in the proxy
(`proxy/nodes/registry.py`) and never sent to the node. After either the proxy sends it no request of a client, but
probes, and moves its streams elsewhere after `proxy.drain_handover_s` (`proxy/handler/stream_watch.py`). With
`transfer.both_ways` a node that was not told SIGTERM sends their KV along (`proxy/handler/mover.py`).

vLLM's own handler closes the engine to new requests at once and its HTTP server last, so clients that come in between
get broken answers, and a prefill node would leave with prompts whose KV no decode node has fetched yet. So SIGTERM is
ours. When nothing is left to do, or the time is up, vLLM is told with a SIGINT, which it handles as it would have
handled the SIGTERM. Before vLLM serves, SIGTERM is handled by vLLM; Ctrl-C always is.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from baton.node.errors import ConnectorFailedError, ConnectorSilentError

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
RETRY_AFTER: Final = ((b"retry-after", b"1"), (b"connection", b"close"))  # sent with a refusal

Pending = Callable[[], Awaitable[int]]


class StopSignals:
    """Whether this process has been told to stop, as far as that was watched: `node/server.py` asks when vLLM's server has ended."""

    def __init__(self) -> None:
        self._watching = False
        self.received = False

    @property
    def ended_unasked(self) -> bool:
        """Whether a server that has ended did so by itself, as vLLM's does when its engine dies."""
        return self._watching and not self.received

    def watch(self) -> None:
        """Note SIGINT from now on. The event loop's own handler still runs: it is told through the wake-up descriptor."""
        self._watching = True
        signal.signal(signal.SIGINT, lambda *_: self.record_stop())
        signal.siginterrupt(signal.SIGINT, False)  # as the event loop has it

    def record_stop(self) -> None:
        self.received = True


STOP_SIGNALS: Final = StopSignals()


async def nothing() -> int:
    """Nothing but requests is waited for."""
    return 0


class Drain:
    """Whether this node is on its way out, and what it still has to end."""

    def __init__(self, timeout_s: float, pending: Pending = nothing, stop: Callable[[], None] | None = None) -> None:
        """`pending` says how many transfers are to be waited for, or raises `NoAnswerError`; `stop` is called once, at the end."""
        self._timeout_s = timeout_s
        self._pending = pending
        self._stop = stop or _stop_vllm
        self._requests = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        """Whether new work is refused."""
        return self._task is not None

    def take_signal(self) -> None:
        """Take SIGTERM over from vLLM, which has installed its handler by now."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.ask)
        STOP_SIGNALS.watch()

    def ask(self) -> None:
        """Begin to drain; asked again, stop at once."""
        STOP_SIGNALS.record_stop()
        if self._task is None:
            logger.info("draining", extra={"requests": self._requests, "timeout_s": self._timeout_s})
            self._task = asyncio.create_task(self._run())
        else:
            self._task.cancel()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request that has to end first."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._requests or await self._open_transfers():  # noqa: ASYNC110  # the connector does not tell
                    await asyncio.sleep(TICK_S)
            logger.info("drained")
        except TimeoutError:
            logger.warning("stopping with work undone", extra={"requests": self._requests})
        finally:
            self._stop()

    async def _open_transfers(self) -> int:
        try:
            return await self._pending()
        except ConnectorSilentError:
            return 1  # it may go on, with prompts that decode nodes want
        except ConnectorFailedError:
            return 0  # no process is left whose pushes could end


def _stop_vllm() -> None:
    signal.raise_signal(signal.SIGINT)
