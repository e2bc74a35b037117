"""Requests that wait until a decode node has room."""

import asyncio

import pytest

from baton.proxy.errors import NoRoomError
from baton.proxy.planning import local_prefill_queue
from baton.proxy.planning.local_prefill_queue import LocalPrefillQueue


class Room:
    def __init__(self) -> None:
        self.places = 0
        self.looks: list[str] = []

    def take(self, name: str) -> str:
        self.looks.append(name)
        if not self.places:
            raise NoRoomError
        self.places -= 1
        return name


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_prefill_queue, "LOOK_S", 0.001)


async def test_they_get_places_in_the_order_in_which_they_came() -> None:
    """Only the first one looks; the others cost nothing."""
    room, waiting = Room(), LocalPrefillQueue()
    tasks = [asyncio.create_task(waiting.wait(lambda n=name: room.take(n), "m", 10)) for name in "abc"]  # type: ignore[misc]
    await asyncio.sleep(0.02)
    looked = set(room.looks)
    room.places = 2
    first = [await tasks[0], await tasks[1]]
    await asyncio.sleep(0.01)
    assert not tasks[2].done()
    room.places = 1

    assert (looked, first, await tasks[2]) == ({"a"}, ["a", "b"], "c")


async def test_who_waits_for_too_long_is_told() -> None:
    """Also a request that never came to look; a request that comes later is not in its way."""
    room, waiting = Room(), LocalPrefillQueue()
    got = await asyncio.gather(
        waiting.wait(lambda: room.take("a"), "m", 0.03),
        waiting.wait(lambda: room.take("b"), "m", 0.02),
        return_exceptions=True,
    )
    room.places = 1

    assert [type(each) for each in got] == [NoRoomError, NoRoomError]
    assert await waiting.wait(lambda: room.take("c"), "m", 1) == "c"


async def test_one_model_does_not_wait_behind_another() -> None:
    """They have decode nodes of their own."""
    room, waiting = Room(), LocalPrefillQueue()
    stuck = asyncio.create_task(waiting.wait(lambda: room.take("a"), "m", 10))
    await asyncio.sleep(0.01)

    assert await waiting.wait(lambda: "b", "other", 1) == "b"
    assert [waiting.is_waiting(model) for model in ("m", "other", "third")] == [True, False, False]
    stuck.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stuck
    assert not waiting.is_waiting("m")
