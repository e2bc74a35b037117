"""Ends the HTTP server when its engine has died. vLLM looks for that every 5 s, and when a request fails before its answer began."""

import asyncio
import os
import sys
import threading
from typing import Any, Final

from baton.node.drain import STOP_SIGNALS

EXIT_ENGINE_ENDED: Final = 1  # exit status of a node whose engine has died
LOOK_S: Final = 0.25
END_S: Final = 1.0  # for the server to tell its clients, and for the process to end in order


class EngineWatch:
    """A task that looks after the engine of vLLM's application."""

    def __init__(self, state: Any) -> None:
        """Make it; `state` is the application's, with vLLM's `engine_client` and uvicorn's `server`."""
        self._state = state
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        from vllm import envs

        while self._state.engine_client.is_running:  # noqa: ASYNC110  # vLLM offers no event
            await asyncio.sleep(LOOK_S)
        if envs.VLLM_KEEP_ALIVE_ON_ENGINE_DEATH:
            return
        self._state.server.should_exit = True
        if not STOP_SIGNALS.received:  # else vLLM ended the engine, in the order and the time that the drain gives it
            bound_end()


def bound_end() -> None:
    """End this process after `END_S`, if it has not ended by then."""
    timer = threading.Timer(END_S, end_now)
    timer.daemon = True
    timer.start()


def end_now() -> None:
    """End this process without waiting for anything in it."""
    sys.stderr.write(f"the engine has died, and vLLM's server has not ended within {END_S:g} s: the process ends now\n")
    os._exit(EXIT_ENGINE_ENDED)
