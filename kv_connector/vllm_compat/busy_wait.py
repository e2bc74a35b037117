"""Keeps vLLM's processes of one engine from spinning while they wait for each other, on a CPU.

The engine and its ranks pass messages through shared memory, and each reader asks for the next one in a loop around
`sched_yield`, for a second after the last. On an accelerator's host that costs an idle core. On a CPU node the cores
are what computes: seen on two of them, readers kept every other thread of the machine waiting for seconds, so that
peers took each other for dead. A short sleep costs a step a tenth of a millisecond.
"""

import logging
import sys
import time
from typing import Any, Final

logger = logging.getLogger(__name__)

MODULE: Final = "vllm.distributed.device_communicators.shm_broadcast"
PAUSE_S: Final = 5e-5

_theirs: dict[str, Any] = {}  # what was replaced, by the module's name


def pause_instead() -> None:
    """Have this process's readers of shared memory sleep between two looks. Idempotent."""
    module: Any = sys.modules.get(MODULE)
    if module is None:
        return  # a process without other ranks
    if not hasattr(module, "sched_yield"):
        logger.warning("%s is not as expected: ranks that wait for each other keep the cores busy", MODULE)
        return
    _theirs.setdefault(MODULE, module.sched_yield)
    module.sched_yield = _pause


def spin_again() -> None:
    if theirs := _theirs.pop(MODULE, None):
        sys.modules[MODULE].sched_yield = theirs  # type: ignore[attr-defined]  # put there by `pause_instead`


def _pause() -> None:
    time.sleep(PAUSE_S)
