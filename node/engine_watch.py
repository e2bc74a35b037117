"""Ends the HTTP server when its engine has died. vLLM looks for that every 5 s, and when a request fails before its answer began."""

import asyncio
from typing import Any, Final

LOOK_S: Final = 0.25


class EngineWatch:
    """A task that looks after the engine of vLLM's application."""

    def __init__(self, state: Any) -> None:
        """Make it; `state` is the application's, with vLLM's `engine_client` and uvicorn's `server`."""
        self._state = state
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look; idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Look no more. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        from vllm import envs

        while self._state.engine_client.is_running:  # noqa: ASYNC110  # vLLM offers no event
            await asyncio.sleep(LOOK_S)
        if not envs.VLLM_KEEP_ALIVE_ON_ENGINE_DEATH:
            self._state.server.should_exit = True
