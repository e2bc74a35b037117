"""Where requests wait whose prefill leg failed while every decode node has as many prompts to compute as it may.

They were accepted: to refuse them now would lose what can be saved. One of them looks again and again whether there is
a way; the others stand in line behind it, model by model.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final, TypeVar

from baton.proxy.errors import NoRoomError

T = TypeVar("T")
LOOK_S: Final = 0.05


class LocalPrefillQueue:
    """One line per model; only models that some node serves come here."""

    def __init__(self) -> None:
        self._heads: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def is_waiting(self, model: str) -> bool:
        """Whether a request for this model waits here."""
        head = self._heads.get(model)
        return head is not None and head.locked()

    async def wait(self, attempt: Callable[[], T], model: str, timeout_s: float) -> T:
        """Return what `attempt` returns once it does.

        Raises:
            NoRoomError: it did not in time.
        """
        try:
            async with asyncio.timeout(timeout_s), self._heads[model]:
                while True:
                    try:
                        return attempt()
                    except NoRoomError:
                        await asyncio.sleep(LOOK_S)
        except TimeoutError as exc:
            raise NoRoomError from exc
