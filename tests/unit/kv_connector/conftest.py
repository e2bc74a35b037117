"""Scheduler sides of decode nodes, which have sockets."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from baton.contracts.kv_transfer import Role
from tests.unit.kv_connector.scheduler_fakes import BLOCK_TOKENS, SECRET, FakePool, MakeDecode, config

if TYPE_CHECKING:
    from baton.kv_connector.scheduler_side.decode import DecodeScheduler


@pytest.fixture
def make_decode(tmp_path: Path) -> Iterator[MakeDecode]:
    """Make a decode node's side with 32 free blocks, and settings for its transfers if need be."""
    from baton.kv_connector.scheduler_side.decode import DecodeScheduler  # with vLLM, which takes seconds

    made: list[DecodeScheduler] = []

    def make(
        *, transfer: dict[str, Any] | None = None, role: Role = "decode", is_bound: bool = True, **more: Any
    ) -> "DecodeScheduler":
        settings = replace(config(tmp_path, **transfer or {}), role=role)
        made.append(DecodeScheduler(settings, SECRET, BLOCK_TOKENS, **more))
        if is_bound:
            made[-1].bind_pool(FakePool(33))
        return made[-1]

    yield make
    for side in made:
        side.close()
