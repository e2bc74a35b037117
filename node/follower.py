"""Runs the ranks of a node on a host that is not its first one; nothing here serves HTTP.

What `vllm serve --headless` does, but for its end: told to stop, ranks first wait for the node's first host, which may
have requests to finish with them. They end when it does (`model_runner/multi_host.py`), or when their time is up.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType
from typing import Any

EXIT_FAILED = 1
OUTLIVE_S = 10.0  # beyond the first host's own time to drain
_PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")  # the second before vLLM 0.29


class Stop:
    """What SIGTERM does: at first it only sets a time limit; a second one, or the limit, ends the process."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._asked = False

    def take_signals(self) -> None:
        """Handle SIGTERM and SIGALRM from now on; for the main thread."""
        signal.signal(signal.SIGTERM, self.ask)
        signal.signal(signal.SIGALRM, self.end)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Wait for the first host; asked again, end."""
        if self._asked:
            self.end(number, frame)
        self._asked = True
        signal.setitimer(signal.ITIMER_REAL, self._timeout_s)

    def end(self, _number: int, _frame: FrameType | None) -> None:
        raise SystemExit(EXIT_FAILED)


def follow(arguments: Sequence[str], drain_timeout_s: float) -> None:
    """Run this host's ranks to their end. Raises `SystemExit`: 0 if they were stopped, `EXIT_FAILED` if one was lost."""
    from vllm import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    parser = _make_parser()(FlexibleArgumentParser())
    engine = AsyncEngineArgs.from_cli_args(parser.parse_args(list(arguments)))
    config = engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER, headless=True)
    executor = MultiprocExecutor(config, monitor_workers=False)
    try:
        Stop(drain_timeout_s + OUTLIVE_S).take_signals()  # until here SIGTERM simply ends the process
        executor.start_worker_monitor(inline=True)  # returns when a rank has ended
    finally:
        codes = [worker.proc.exitcode for worker in executor.workers]
        executor.shutdown()
    sys.exit(EXIT_FAILED if any(codes) else 0)


def _make_parser() -> Callable[[Any], Any]:
    for name in _PARSERS:
        try:
            made: Callable[[Any], Any] = import_module(name).make_arg_parser
        except ModuleNotFoundError:
            continue
        return made
    raise ImportError("this version of vLLM has no parser of its server's arguments where it is looked for")
