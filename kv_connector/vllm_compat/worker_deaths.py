"""Ends an engine core that has lost a worker process and does not end by itself.

vLLM's executor notices the death, stops the other workers and tells the engine core. A core that waits at that moment
for the reply of a rank on another host is not woken, and stays until vLLM's bound of 300 s for a step: seen once in
some forty kills of a second host. Until then the node answers `silent`, and no supervisor starts it again.
"""

import faulthandler
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Final

logger = logging.getLogger(__name__)

EXIT_WORKER_DIED: Final = 72  # exit status of an engine core that is ended here
END_S: Final = 20.0  # for vLLM to end the engine core, on a busy machine too; it gives its workers 4 s
# How vLLM names its processes. An engine inside of a program of the user's is left alone, and so are other children.
ENGINE_CORE: Final = "EngineCore"
WORKER: Final = "VllmWorker-"


def watch_workers(end_s: float = END_S) -> None:
    """Have this engine core ended `end_s` after the first of its worker processes has, if it runs on until then."""
    if not multiprocessing.current_process().name.startswith(ENGINE_CORE):
        return
    workers = [child for child in multiprocessing.active_children() if child.name.startswith(WORKER)]
    if workers:
        threading.Thread(target=_watch, args=(workers, end_s), name="baton-worker-deaths", daemon=True).start()


def _watch(workers: Sequence[BaseProcess], end_s: float) -> None:
    died = connection.wait([worker.sentinel for worker in workers])
    time.sleep(end_s)
    names = [worker.name for worker in workers if worker.sentinel in died]
    logger.error(
        "worker process %s ended %g s ago, and vLLM has not ended the engine core: this process, %d, ends with status %d; "
        "the stacks of all threads:",
        ", ".join(names),
        end_s,
        os.getpid(),
        EXIT_WORKER_DIED,
    )
    with suppress(OSError, ValueError, AttributeError):  # stderr is closed, or there is none
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)  # type: ignore[arg-type]  # None: AttributeError
    os._exit(EXIT_WORKER_DIED)
