"""Streams that are watched."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import pytest

from baton.proxy.nodes.node import State
from tests.unit.proxy.handler.watched_streams import Ahead, FakeNode, Watch, Watched


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    """Watches the streams of a node in some state, beside another that is ready; they are ended afterwards."""
    made: list[Watched] = []

    def begin(state: State, ahead: Ahead | None = None, **settings: Any) -> Watched:
        made.append(here := Watched(FakeNode(state), FakeNode(State.READY), **settings))
        if ahead is not None:
            here.watch.ahead = cast("Any", ahead)
        return here

    yield begin
    for task in (task for each in made for task in each.tasks):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
