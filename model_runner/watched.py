"""Has a worker's steps watched, whatever its runner and device."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vllm import envs
from vllm.v1.outputs import AsyncModelRunnerOutput

from baton.model_runner.channel import STEP_TIMEOUT_VARIABLE
from baton.model_runner.watchdog import Watchdog


class Watched:
    """Mixed into a worker, before what else wraps its steps."""

    _watchdog: Watchdog | None = None

    def compile_or_warm_up_model(self) -> Any:
        """Watch from now on, but not this: it may take minutes, and with vLLM's V2 runner it runs steps of its own."""
        result = super().compile_or_warm_up_model()  # type: ignore[misc]
        self._watchdog = Watchdog(step_timeout_s(os.environ))
        self._watchdog.start()
        return result

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        with self._watch("execute_model"):
            return self._watch_output(super().execute_model(*args, **kwargs))  # type: ignore[misc]

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        with self._watch("sample_tokens"):
            return self._watch_output(super().sample_tokens(*args, **kwargs))  # type: ignore[misc]

    def take_draft_token_ids(self) -> Any:
        with self._watch("take_draft_token_ids"):
            return super().take_draft_token_ids()  # type: ignore[misc]

    def execute_dummy_batch(self) -> None:
        """Take part in another data-parallel engine's step, watched."""
        with self._watch("execute_dummy_batch"):
            super().execute_dummy_batch()  # type: ignore[misc]

    def shutdown(self) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        super().shutdown()  # type: ignore[misc]

    def _watch(self, name: str) -> AbstractContextManager[None]:
        return nullcontext() if self._watchdog is None else self._watchdog.call(name)

    def _watch_output(self, output: Any) -> Any:
        watchdog = self._watchdog
        if watchdog is None or not isinstance(output, AsyncModelRunnerOutput):
            return output

        def get_output() -> Any:
            with watchdog.call("get_output"):
                return output.get_output()

        return WrappedOutput(output, get_output)


@AsyncModelRunnerOutput.register  # in place of a base class: later versions of vLLM have more abstract methods
class WrappedOutput:
    """A step's asynchronous output with another `get_output`; a thread may call it long after the step has returned."""

    def __init__(self, output: AsyncModelRunnerOutput, get_output: Callable[[], Any]) -> None:
        self._output = output
        self.get_output = get_output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._output, name)


def step_timeout_s(environ: Mapping[str, str]) -> float:
    """Return how long a call of a step may take: what the node says, or in a server that is no node vLLM's own bound."""
    return float(environ.get(STEP_TIMEOUT_VARIABLE) or envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)
